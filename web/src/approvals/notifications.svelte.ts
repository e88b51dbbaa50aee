import type { Plan, ToolCall } from "../api/calls";
import { riskName, summary, toolName } from "../calls/describe";
import { t } from "../i18n/index.svelte";
import { link } from "../router.svelte";
import { projects } from "../state/projects.svelte";
import { requesterOf } from "./requester.svelte";
import worker from "./notificationWorker.js?url";

const STORAGE_KEY = "atelier.notify";

/** Browsers show notifications only for pages served from this computer or over TLS. */
export const canNotify = "Notification" in globalThis && isSecureContext;

let permission = $state(canNotify ? Notification.permission : "denied");
let wanted = $state(localStorage.getItem(STORAGE_KEY));

export const notifying = (): boolean => wanted !== "no" && permission === "granted";
/** Whether the user wants notifications but the browser blocks them. */
export const blocked = (): boolean => wanted === "yes" && permission === "denied";

/** Turns notifications on or off. The browser may ask the user for permission first. */
export async function setNotifying(on: boolean): Promise<void> {
  wanted = on ? "yes" : "no";
  localStorage.setItem(STORAGE_KEY, wanted);
  if (on) permission = await Notification.requestPermission();
}

/** Notifies a user who is not looking at this page about a pending approval. */
export function notifyCall(call: ToolCall): void {
  const title = t("notify.title", { who: requesterOf(call), risk: riskName(call.risk_level) });
  // The tag makes a repeated request replace the earlier notification.
  show(
    title,
    { body: `${toolName(call.tool_name)} ${summary(call)}`, tag: call.tool_id },
    link.approval(call.tool_id),
  );
}

export function notifyPlan(plan: Plan): void {
  show(
    t("plan.needs_approval"),
    { body: projects.all.get(plan.project_id)?.name ?? "", tag: plan.id },
    link.chat(plan.project_id, plan.session_id),
  );
}

function show(title: string, options: NotificationOptions, place: string): void {
  if (!notifying() || (!document.hidden && document.hasFocus())) return;
  try {
    const notification = new Notification(title, options);
    notification.onclick = () => {
      goTo(place);
      notification.close();
    };
  } catch {
    // On phones only a service worker can show notifications.
    showByWorker(title, options, place).catch((error: unknown) =>
      console.info("A notification could not be shown.", error),
    );
  }
}

function goTo(place: string): void {
  focus();
  location.hash = place;
}

let registered: Promise<ServiceWorkerRegistration> | undefined;

async function showByWorker(
  title: string,
  options: NotificationOptions,
  place: string,
): Promise<void> {
  registered ??= navigator.serviceWorker.register(worker);
  navigator.serviceWorker.onmessage = ({ data }: MessageEvent<{ place: string }>) =>
    goTo(data.place);
  await (await registered).showNotification(title, { ...options, data: { place } });
}
