// What the server is doing, in the frame of the page.

export const activity = document.getElementById("activity");

export function showActivity(progress) {
  activity.textContent = progress?.total
    ? `indexing ${Math.min(99, Math.round((100 * progress.done) / progress.total))}%` : "";
}
