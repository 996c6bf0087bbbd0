import { defineConfig } from "vite";
import { recordBuild } from "./record_build.js";

const root = import.meta.dirname;
const page = new URL("../src/hookpoint/board/page/", import.meta.url).pathname;

// Fixed names: the server has a route for each file. `BOARD_PAGE` builds into another folder, for comparison.
export default defineConfig({
  root,
  logLevel: "warn",
  build: {
    outDir: process.env.BOARD_PAGE ?? page,
    emptyOutDir: true,
    target: "es2022",
    modulePreload: false,
    assetsInlineLimit: 0,
    cssCodeSplit: false,
    reportCompressedSize: false,
    rollupOptions: {
      output: { entryFileNames: "board.js", assetFileNames: "board[extname]", codeSplitting: false },
    },
  },
  plugins: [recordBuild(root)],
});
