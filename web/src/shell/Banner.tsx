// What went wrong, and what to do. Or a short notice.
import { useEffect } from "preact/hooks";
import { clock } from "../data/format";
import { loadRuns } from "../data/loading";
import { update, useStore } from "../data/store";

const NOTICE_MS = 6000;

export function Banner() {
  const connection = useStore((state) => state.connection);
  const heard = useStore((state) => state.heard);
  const error = useStore((state) => state.error);
  const notice = useStore((state) => state.notice);
  useEffect(() => {
    if (!notice) return undefined;
    const timer = setTimeout(() => update({ notice: "" }), NOTICE_MS);
    return () => clearTimeout(timer);
  }, [notice]);

  if (connection === "denied") {
    return (
      <div class="banner problem" role="alert" id="denied">
        <b>The board was restarted.</b> Open the address that <code>hookpoint board</code> has printed. With <code>--token-file</code>, the address stays the same.
      </div>
    );
  }
  if (connection === "lost") {
    return (
      <div class="banner warn" role="alert" id="lost">
        <b>Connection lost.</b> {heard > 0 && `These values are from ${clock(heard / 1000)}. `}The page reconnects by itself. If the board has ended, start it again: <code>hookpoint board</code>. <button type="button" onClick={() => void loadRuns()}>Try now</button>
      </div>
    );
  }
  if (error) {
    return (
      <div class="banner problem" role="alert" id="error">
        {error} <button type="button" onClick={() => update({ error: "" })}>Dismiss</button>
      </div>
    );
  }
  return <div class={notice ? "notice" : "sr"} role="status" id="notice">{notice}</div>;
}
