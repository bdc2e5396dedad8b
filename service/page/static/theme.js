// The colours: as the system has them, until the reader chooses. Nothing is stored, so a reload asks the system again.

for (const choice of document.querySelectorAll('input[name="theme"]')) {
  choice.addEventListener("change", () => {
    if (choice.value === "system") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = choice.value;
  });
}
