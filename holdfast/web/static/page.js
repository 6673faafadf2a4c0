// Keeps an open page true: when what it shows has changed, it is fetched anew, unless somebody is typing into it. What a
// model says meanwhile is shown as it comes.
const main = () => document.getElementById("main");
const isTouched = () =>
  [...main().querySelectorAll("input:not([type=hidden]), textarea")].some((field) => field.value !== field.defaultValue) ||
  main().contains(document.activeElement.closest("form, details[open]"));

const listen = () => {
  if (!main().dataset.changes) return;
  const changes = new EventSource(main().dataset.changes);
  changes.addEventListener("changed", async () => {
    if (isTouched()) {
      main().querySelector(".changed").hidden = false;
      return;
    }
    changes.close();
    await htmx.ajax("GET", location.pathname, { source: main(), target: main(), select: "#main", swap: "outerHTML" });
    listen();
  });
  changes.addEventListener("words", (event) => {
    const { offset, text } = JSON.parse(event.data);
    const says = document.getElementById("says");
    const words = says.querySelector("[data-words]");
    words.textContent = offset === 0 ? text : words.textContent + text;
    says.hidden = false;
  });
};
listen();
