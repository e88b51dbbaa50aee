import { t } from "../i18n/index.svelte";

/** The sandbox limits that a machine reported when it connected. */
interface Isolation {
  landlock?: number;
  mounts?: boolean;
  network?: string;
  processes?: string;
}

/** Describes a machine's sandbox. The network limit is left out for a command that may use the network. */
export function describeSandbox(isolation: object, networked = false): string {
  const {
    landlock = 0,
    mounts = false,
    network = "none",
    processes = "group",
  } = isolation as Isolation;
  const limits = [
    landlock > 0 || mounts ? t("sandbox.files") : t("sandbox.files.none"),
    ...(networked ? [] : [network !== "none" ? t("sandbox.network") : t("sandbox.network.none")]),
    processes !== "group" ? t("sandbox.processes") : t("sandbox.processes.none"),
  ];
  return limits.join(" · ");
}

/** Whether the machine can keep a command from writing files and from using the network. */
export function isSandboxed(isolation: object): boolean {
  const { landlock = 0, mounts = false, network = "none" } = isolation as Isolation;
  return (landlock > 0 || mounts) && network !== "none";
}
