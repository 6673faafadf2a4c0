// Keeps an open page true: when what it shows has changed, it is fetched anew; but not under somebody's hands, who is
// typing, or about to press a button that another one would take the place of. What a model says is shown as it comes.
const main = () => document.getElementById("main");
const wait = (seconds) => new Promise((done) => setTimeout(done, 1000 * seconds));
const isTouched = () =>
  main().querySelector("article:hover") ||
  [...main().querySelectorAll("input:not([type=hidden]), textarea")].some((field) => field.value !== field.defaultValue) ||
  main().contains(document.activeElement.closest("form, details[open]"));

const offer = () => {
  const notice = main().querySelector(".changed");
  notice.querySelector("a").href = location.href;
  notice.hidden = false;
};

// Whoever was about to press a button sees first what it has become.
const settle = async () => {
  const buttons = [...main().querySelectorAll("article button:not([disabled])")];
  buttons.forEach((button) => (button.disabled = true));
  await wait(0.7);
  buttons.forEach((button) => (button.disabled = false));
};

const refresh = async () => {
  const before = main();
  const focused = document.activeElement.id;
  const unfolded = new Set([...before.querySelectorAll("details[open] > summary")].map((summary) => summary.textContent));
  const stop = (event) => {
    if (event.detail.target === main() && isTouched()) {
      event.detail.shouldSwap = false;
      offer();
    }
  };
  document.body.addEventListener("htmx:beforeSwap", stop);
  try {
    await htmx.ajax("GET", location.pathname + location.search, { source: main(), target: main(), select: "#main", swap: "outerHTML" });
  } catch {
    // the server is away, and comes back, or does not
  } finally {
    document.body.removeEventListener("htmx:beforeSwap", stop);
  }
  if (main() === before) return offer();
  heard = "";
  settle();
  for (const summary of main().querySelectorAll("summary")) {
    if (unfolded.has(summary.textContent)) summary.parentElement.open = true;
  }
  if (focused && document.activeElement === document.body) document.getElementById(focused)?.focus();
};

let changes;
let heard = ""; // of what a model says, the last that this page was told
const listen = () => {
  changes?.close();
  if (!main().dataset.changes || document.hidden) return; // a browser has six connections for all pages that are open
  const address = new URL(main().dataset.changes, location.href);
  if (heard) address.searchParams.set("has", heard);
  changes = new EventSource(address);
  changes.addEventListener("open", () => (main().querySelector(".lost").hidden = true));
  changes.addEventListener("error", () => {
    main().querySelector(".lost").hidden = false;
    if (changes.readyState === EventSource.CLOSED) wait(5).then(listen);
  });
  changes.addEventListener("changed", async () => {
    if (isTouched()) return offer();
    changes.close();
    await refresh();
    await wait(1); // however often it changes
    listen();
  });
  changes.addEventListener("words", (event) => {
    const { offset, text } = JSON.parse(event.data);
    const says = document.getElementById("says");
    const words = says.querySelector("[data-words]");
    words.textContent = offset === 0 ? text : words.textContent + text;
    says.hidden = false;
    heard = event.lastEventId;
  });
};
document.addEventListener("visibilitychange", listen);
listen();

// What was done is said once, and not again when the page is fetched anew.
const here = new URL(location.href);
if (here.searchParams.has("said")) {
  here.searchParams.delete("said");
  here.searchParams.delete("run");
  history.replaceState(null, "", here);
}
