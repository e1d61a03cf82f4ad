// Before the page is drawn, so that it does not flash: the theme that was chosen here before, else the system's.
(() => {
  const root = document.documentElement;
  let theme = null;
  try { theme = localStorage.getItem("theme"); } catch { /* storage is switched off */ }
  if (theme === "light" || theme === "dark") root.style.colorScheme = theme;
})();
