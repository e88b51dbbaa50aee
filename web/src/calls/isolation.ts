import { t } from "../i18n/index.svelte";

/** What a machine said about its walls when it connected. */
interface Isolation {
  landlock?: number;
  mounts?: boolean;
  network?: string;
  processes?: string;
}

/** Which walls stand around a command, in words; the one to the network not where it is let through. */
export function walls(isolation: object, networked = false): string {
  const { landlock = 0, mounts = false, network = "none", processes = "group" } = isolation as Isolation;
  const standing = [
    landlock > 0 || mounts ? t("walls.files") : t("walls.files.none"),
    ...(networked ? [] : [network !== "none" ? t("walls.network") : t("walls.network.none")]),
    processes !== "group" ? t("walls.processes") : t("walls.processes.none"),
  ];
  return standing.join(" · ");
}

/** Whether a command that only looks is held to looking there. */
export function isWalled(isolation: object): boolean {
  const { landlock = 0, mounts = false, network = "none" } = isolation as Isolation;
  return (landlock > 0 || mounts) && network !== "none";
}
