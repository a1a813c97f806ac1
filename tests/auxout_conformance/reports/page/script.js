"use strict";

// Without this script the page is complete, only without filters and copy buttons.

const told = document.getElementById("told");

async function copy(text) {
  if (navigator.clipboard && window.isSecureContext) {
    await navigator.clipboard.writeText(text);
    return;
  }
  const field = document.createElement("textarea");
  field.value = text;
  document.body.append(field);
  field.select();
  const done = document.execCommand("copy");
  field.remove();
  if (!done) throw new Error("refused");
}

for (const button of document.querySelectorAll("button.copy")) {
  const name = button.firstChild;
  button.hidden = false;
  button.addEventListener("click", async () => {
    try {
      await copy(button.previousElementSibling.textContent);
      name.data = "Copied";
      told.textContent = "Copied.";
    } catch {
      name.data = "Not copied";
      told.textContent = "The browser does not let this page copy.";
    }
    setTimeout(() => { name.data = "Copy"; told.textContent = ""; }, 2000);
  });
}

for (const form of document.querySelectorAll("form.filters")) {
  const rows = [...form.nextElementSibling.tBodies[0].rows];
  const shown = form.querySelector("[role=status]");
  const filter = () => {
    const statuses = new Set([...form.querySelectorAll("[name=status]:checked")].map((box) => box.value));
    const text = form.elements.text.value.trim().toLowerCase();
    let count = 0;
    for (const row of rows) {
      const fits = statuses.has(row.dataset.status) && row.textContent.toLowerCase().includes(text);
      row.hidden = !fits;
      count += fits;
    }
    shown.textContent = `${count} of ${rows.length} clauses`;
  };
  form.hidden = false;
  form.addEventListener("input", filter);
  form.addEventListener("submit", (event) => event.preventDefault());
  filter();
}
