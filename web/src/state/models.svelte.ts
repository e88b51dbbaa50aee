import * as api from "../api/calls";
import { Loader } from "./loader";

/** The models that the user's agents can use, and the keys of their providers. */
class Models {
  overview = $state.raw<api.ModelsOverview | null>(null);
  error = $state.raw<unknown>(null);
  #loader = new Loader(async () => {
    try {
      this.overview = await api.models();
      this.error = null;
    } catch (error) {
      this.error = error;
    }
  });

  load(): Promise<void> {
    return this.#loader.load();
  }

  clear(): void {
    this.#loader.cancel();
    this.overview = null;
    this.error = null;
  }

  /** The names that agents can have as their model. */
  get names(): string[] {
    if (!this.overview) return [];
    const { aliases, providers } = this.overview;
    return [
      ...aliases.map(({ name }) => name),
      ...providers.flatMap(({ models }) => models.map(({ name }) => name)),
      "demo",
    ];
  }

  /** The providers whose models can answer: those with a key, or that need none. */
  get usable(): api.ModelProvider[] {
    const providers = this.overview?.providers ?? [];
    return providers.filter(({ key }) => !["missing", "unusable"].includes(key));
  }

  /** The model that answers for a name, if it is another one. */
  answeredBy(name: string): string | null {
    const alias = this.overview?.aliases.find((alias) => alias.name === name);
    return alias?.answered_by ?? null;
  }

  /** Whether nothing but the demo model answers, because no provider has a key. */
  get isDemo(): boolean {
    return this.overview?.default.answered_by === "demo" && !this.overview.default.chosen;
  }
}

export const models = new Models();
