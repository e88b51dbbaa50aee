import type { Plan, ToolCall } from "../api/calls";
import { riskName, summary, toolName } from "../calls/describe";
import { t } from "../i18n/index.svelte";
import { link } from "../router.svelte";
import { projects } from "../state/projects.svelte";
import { askerOf } from "./asker.svelte";
import worker from "./notifier.js?url";

const KEPT = "atelier.notify";

/** Browsers show notifications only for pages from this machine or over TLS. */
export const canNotify = "Notification" in globalThis && isSecureContext;

let permission = $state(canNotify ? Notification.permission : "denied");
let said = $state(localStorage.getItem(KEPT));

export const notifying = (): boolean => said !== "no" && permission === "granted";
/** Somebody wants them, and the browser does not. */
export const refused = (): boolean => said === "yes" && permission === "denied";

/** Switches them on or off; the browser may ask the person first, and the person may say no. */
export async function setNotifying(on: boolean): Promise<void> {
  said = on ? "yes" : "no";
  localStorage.setItem(KEPT, said);
  if (on) permission = await Notification.requestPermission();
}

/** Tells of a question, to somebody who does not look at this page right now. */
export function tell(call: ToolCall): void {
  const title = t("notify.title", { who: askerOf(call), risk: riskName(call.risk_level) });
  // A question that is asked again takes the place of the one before.
  show(title, { body: `${toolName(call.tool_name)} ${summary(call)}`, tag: call.tool_id }, link.approval(call.tool_id));
}

export function tellOfPlan(plan: Plan): void {
  show(t("plan.asks"), { body: projects.all.get(plan.project_id)?.name ?? "", tag: plan.id }, link.chat(plan.project_id, plan.session_id));
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
    // Phones let only a worker show them.
    showByWorker(title, options, place).catch((error: unknown) => console.info("A notification could not be shown.", error));
  }
}

function goTo(place: string): void {
  focus();
  location.hash = place;
}

let registered: Promise<ServiceWorkerRegistration> | undefined;

async function showByWorker(title: string, options: NotificationOptions, place: string): Promise<void> {
  registered ??= navigator.serviceWorker.register(worker);
  navigator.serviceWorker.onmessage = ({ data }: MessageEvent<{ place: string }>) => goTo(data.place);
  await (await registered).showNotification(title, { ...options, data: { place } });
}
