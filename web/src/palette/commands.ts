import { t } from "../i18n/index.svelte";
import { SECTIONS } from "../projects/sections";
import { link, router } from "../router.svelte";
import { session } from "../session/session.svelte";
import { loadedConversationsOf } from "../state/conversations.svelte";
import { projects } from "../state/projects.svelte";

export interface Command {
  name: string;
  /** Where the command belongs, such as the name of a project. */
  place: string;
  href: string;
}

/** Every page that can be reached from here, the nearest first. */
export function commands(): Command[] {
  const route = router.route;
  const here = "project" in route ? projects.all.get(route.project) : undefined;
  const found: Command[] = [];
  const add = (name: string, href: string, place = "") => found.push({ name, href, place });
  if (here) {
    add(t("chat.new"), link.newChat(here.id), here.name);
    for (const section of SECTIONS)
      add(t(`project.section.${section}`), link.section(here.id, section), here.name);
    add(t("project.settings"), link.settings(here.id), here.name);
    add(t("agents.new"), link.newAgent(here.id), here.name);
  }
  add(t("home.title"), link.home());
  add(t("nav.approvals"), link.approvals());
  add(t("nav.projects"), link.projects());
  add(t("projects.new"), link.newProject());
  add(t("nav.activity"), link.activity());
  add(t("models.title"), link.models());
  add(t("usage.title"), link.usage());
  add(t("account.sessions"), link.account());
  if (session.me?.role === "admin") add(t("nav.overview"), link.overview());
  for (const { id, name } of projects.all.values()) {
    add(name, link.project(id), t("nav.projects"));
    add(`${name}: ${t("project.section.chat")}`, link.section(id, "chat"), t("nav.projects"));
    for (const { id: conversation, title } of loadedConversationsOf(id)?.all.values() ?? [])
      if (title) add(title, link.chat(id, conversation), name);
  }
  return found;
}

/** The commands whose name or place has all the words, those whose name begins with the text first. */
export function matching(all: readonly Command[], text: string): Command[] {
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  const rank = ({ name }: Command) => (name.toLowerCase().startsWith(text.toLowerCase()) ? 0 : 1);
  return all
    .filter(({ name, place }) => {
      const whole = `${name} ${place}`.toLowerCase();
      return words.every((word) => whole.includes(word));
    })
    .sort((a, b) => rank(a) - rank(b));
}
