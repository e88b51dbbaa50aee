// Shows notifications where a page may not, as on phones. It keeps nothing and answers no requests.

addEventListener("notificationclick", (event) => {
  const { notification } = event;
  notification.close();
  event.waitUntil(open(notification.data.place));
});

/** Brings the console to the front, at this place. */
async function open(place) {
  const [page] = await clients.matchAll({ type: "window", includeUncontrolled: true });
  if (!page) return clients.openWindow(`/${place}`);
  page.postMessage({ place });
  return page.focus();
}
