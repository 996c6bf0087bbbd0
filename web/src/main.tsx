// The board's page. Names from files are set as text only.
import { render } from "preact";
import "uplot/dist/uPlot.min.css";
import { followTheme } from "./charts/theme";
import { followLink } from "./data/link";
import { loadRuns } from "./data/loading";
import { react } from "./data/reactions";
import { followServer } from "./data/stream";
import { App } from "./shell/App";
import { followKeys } from "./shell/keys";
import "./styles/tokens.css";
import "./styles/layout.css";
import "./styles/parts.css";
import "./styles/charts.css";
import "./styles/phone.css";

followTheme();
followLink();
react();
render(<App />, document.getElementById("board")!);
followKeys();
void loadRuns().then(() => {
  followServer();
  document.body.dataset.ready = "1";
});
