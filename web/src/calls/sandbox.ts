import type { Isolation } from "../api/calls";
import { t } from "../i18n/index.svelte";

/** Describes a machine's sandbox. The network limit is left out for a command that may use the network. */
export function describeSandbox(isolation: Isolation, networked = false): string {
  const { landlock, mounts, network, processes } = isolation;
  const limits = [
    landlock || mounts ? t("sandbox.files") : t("sandbox.files.none"),
    ...(networked
      ? []
      : [(network ?? "none") !== "none" ? t("sandbox.network") : t("sandbox.network.none")]),
    (processes ?? "group") !== "group" ? t("sandbox.processes") : t("sandbox.processes.none"),
  ];
  return limits.join(" · ");
}
