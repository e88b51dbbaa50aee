import type { ToolCall } from "../api/calls";
import { summary, toolName } from "../calls/describe";
import { t } from "../i18n/index.svelte";
import { link } from "../router.svelte";
import { askerOf } from "./asker.svelte";

const KEPT = "atelier.notify";

/** Browsers show notifications only for pages from this machine or over TLS. */
export const canNotify = "Notification" in globalThis && isSecureContext;

let wanted = $state(canNotify && Notification.permission === "granted" && localStorage.getItem(KEPT) !== "no");

export function notifying(): boolean {
  return wanted;
}

/** Switches them on or off; the browser may ask the person first, and the person may say no. */
export async function setNotifying(on: boolean): Promise<void> {
  localStorage.setItem(KEPT, on ? "yes" : "no");
  wanted = on && (await Notification.requestPermission()) === "granted";
}

/** Tells of a question, to somebody who does not look at this page right now. */
export function tell(call: ToolCall): void {
  if (!wanted || (!document.hidden && document.hasFocus())) return;
  const notification = new Notification(t("notify.title", { who: askerOf(call), risk: call.risk_level }), {
    body: `${toolName(call.tool_name)} ${summary(call)}`,
    // A question that is asked again takes the place of the one before.
    tag: call.tool_id,
  });
  notification.onclick = () => {
    focus();
    location.hash = link.approval(call.tool_id);
    notification.close();
  };
}
