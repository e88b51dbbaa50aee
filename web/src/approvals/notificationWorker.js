// A service worker that shows notifications where a page cannot, as on phones. It caches nothing and intercepts no requests.

addEventListener("notificationclick", (event) => {
  const { notification } = event;
  notification.close();
  event.waitUntil(open(notification.data.place));
});

/** Brings the console to the front and opens this page. */
async function open(place) {
  const [page] = await clients.matchAll({ type: "window", includeUncontrolled: true });
  if (!page) return clients.openWindow(`/${place}`);
  page.postMessage({ place });
  return page.focus();
}
