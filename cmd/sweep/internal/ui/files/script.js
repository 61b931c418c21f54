// Fetches the page again every few seconds, and exchanges the parts that are marked data-refresh. Whoever
// has the focus or a selection inside a part keeps it as it is. Without this script all else works.
"use strict";
(() => {
  const every = 5000;
  const footer = document.querySelector("footer");
  if (!document.querySelector("main [data-refresh]")) return;

  const status = document.createElement("p");
  status.setAttribute("role", "status");
  const button = document.createElement("button");
  button.type = "button";
  const text = document.createElement("span");
  status.append(button, " ", text);
  footer.append(status);

  let off = false;
  try { off = sessionStorage.getItem("refresh") === "off"; } catch { /* it may be forbidden */ }
  let failed = false;
  const say = () => {
    button.textContent = off ? "Refresh by itself" : "Stop refreshing";
    const now = off ? "The page stays as it is." : failed ? "It cannot be refreshed: what it shows is as of the time above." : "";
    if (text.textContent !== now) text.textContent = now;
    text.className = failed && !off ? "stale" : "";
  };
  button.addEventListener("click", () => {
    off = !off;
    try { sessionStorage.setItem("refresh", off ? "off" : "on"); } catch { /* for this page only */ }
    say();
    if (!off) refresh();
  });

  const busy = (part) => {
    if (part.contains(document.activeElement) && document.activeElement !== document.body) return true;
    const selection = document.getSelection();
    return selection && !selection.isCollapsed && part.contains(selection.anchorNode);
  };

  let running = false;
  async function refresh() {
    if (off || running || document.hidden) return;
    running = true;
    try {
      const answer = await fetch(location.href.split("#")[0], { credentials: "same-origin", cache: "no-store" });
      if (!answer.ok) throw new Error(String(answer.status));
      const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
      for (const part of document.querySelectorAll("[data-refresh]")) {
        const other = fresh.getElementById(part.id);
        if (!other || busy(part) || part.innerHTML === other.innerHTML) continue;
        const open = [...part.querySelectorAll("details")].map((d) => d.open);
        part.replaceChildren(...other.childNodes);
        part.querySelectorAll("details").forEach((d, i) => { d.open = open[i] || false; });
      }
      failed = false;
    } catch {
      failed = true;
    }
    running = false;
    say();
  }
  say();
  setInterval(refresh, every);
  document.addEventListener("visibilitychange", refresh);
})();
