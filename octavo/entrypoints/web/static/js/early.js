// Before the page is drawn: the theme that was chosen, so that nothing flashes.
try {
  const theme = localStorage.getItem("octavo.theme");
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
} catch {
  // Storage is blocked: the system's theme stays.
}
