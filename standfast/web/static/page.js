// Keeps an open page true: when what it shows has changed, it is fetched anew; but not under somebody's hands, who is
// typing, or about to press a button that another one would take the place of. What a model says is shown as it comes.
const main = () => document.getElementById("main");
const wait = (seconds) => new Promise((done) => setTimeout(done, 1000 * seconds));
const isTouched = () =>
  main().querySelector("article:hover") ||
  [...main().querySelectorAll("input[type=checkbox]:not([value=keep])")].some((field) => field.checked !== field.defaultChecked) ||
  [...main().querySelectorAll("article option")].some((option) => option.selected !== option.defaultSelected) ||
  [...main().querySelectorAll("input:not([type=hidden]):not([type=checkbox]), textarea")].some((field) => field.value !== field.defaultValue) ||
  main().contains(document.activeElement.closest("form, details[open]"));

// --- times: how long ago, and the exact one in the viewer's own zone on hover ---

const sizes = [["year", 31557600], ["month", 2629800], ["week", 604800], ["day", 86400], ["hour", 3600], ["minute", 60], ["second", 1]];
const words = new Intl.RelativeTimeFormat("en", { numeric: "auto" });
const exact = new Intl.DateTimeFormat(undefined, { dateStyle: "full", timeStyle: "long" });
const tellTimes = () => {
  for (const time of main().querySelectorAll("time[datetime]")) {
    const at = new Date(time.dateTime);
    const seconds = (at - Date.now()) / 1000;
    const [unit, size] = sizes.find(([, size]) => Math.abs(seconds) >= size) ?? ["second", 1];
    const text = words.format(Math.round(seconds / size), unit);
    if (!time.title) time.title = `${exact.format(at)} · ${time.textContent}`;
    if (time.textContent !== text) time.textContent = text;
  }
};
tellTimes();
setInterval(tellTimes, 5000);

// --- a page that is out of date ---

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

const fetched = async () => {
  try {
    const options = { headers: { Accept: "text/html" }, signal: AbortSignal.timeout(10000) };
    const answer = await fetch(location.pathname + location.search, options);
    return answer.ok ? new DOMParser().parseFromString(await answer.text(), "text/html") : null;
  } catch {
    return null; // the server is away, and comes back, or does not
  }
};

const refresh = async () => {
  const now = await fetched();
  if (!now?.getElementById("main") || isTouched()) return offer();
  const focused = document.activeElement.id;
  const unfolded = new Set([...main().querySelectorAll("details[open] > summary")].map((summary) => summary.textContent));
  main().replaceWith(document.adoptNode(now.getElementById("main")));
  document.title = now.title;
  heard = "";
  tellTimes();
  count();
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
  const hear = (event) => {
    const { offset, text } = JSON.parse(event.data);
    const says = document.getElementById("says");
    const words = says.querySelector(`[data-${event.type}]`);
    words.textContent = offset === 0 ? text : words.textContent + text;
    says.hidden = false;
    heard = event.lastEventId;
  };
  changes.addEventListener("words", hear);
  changes.addEventListener("thoughts", hear);
};
document.addEventListener("visibilitychange", listen);
listen();

// --- lists ---

document.addEventListener("change", ({ target }) => {
  if (!target.matches("[data-all]")) return;
  for (const box of target.form.elements) if (box.type === "checkbox" && !box.disabled) box.checked = target.checked;
});

// The buttons of the inbox say how many they decide. Without a choice they would only cover the buttons of a card.
const count = () => {
  const form = document.getElementById("several");
  const chosen = [...(form?.elements ?? [])].filter((box) => box.matches(":checked:not([data-all])")).length;
  form?.classList.toggle("none", chosen === 0);
  for (const button of form?.querySelectorAll("[data-counts]") ?? []) {
    button.textContent = `${button.dataset.counts} ${chosen}`;
    button.disabled = chosen === 0;
  }
};
document.addEventListener("change", count);
count();

// Several at once are decided as they were shown. A card in which something was typed is decided by its own buttons.
const isAsShown = (field) => {
  if (field.type === "checkbox") return field.checked === field.defaultChecked;
  if (field.type === "select-one") return [...field.options].every((option) => option.selected === option.defaultSelected);
  return !field.matches("input, textarea") || field.value === field.defaultValue;
};
document.addEventListener("input", ({ target }) => {
  const box = target.closest("article.card")?.querySelector(".choose input");
  if (!box || box === target) return;
  box.disabled = ![...target.form.elements].every(isAsShown);
  box.checked &&= !box.disabled;
  count();
});

// Enter in a checkbox would send its form, as if a button had been pressed.
document.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && event.target.matches("input[type=checkbox]")) event.preventDefault();
});

// What was done is said once, and not again when the page is fetched anew.
const here = new URL(location.href);
if (here.searchParams.has("said")) {
  here.searchParams.delete("said");
  here.searchParams.delete("run");
  history.replaceState(null, "", here);
}
