/** How the companies write the names of the providers that every server knows. */
const NAMES: Partial<Record<string, string>> = {
  openai: "OpenAI",
  anthropic: "Anthropic",
  openrouter: "OpenRouter",
  ollama: "Ollama",
};

/** The name of a provider as people read it. Providers that an admin added keep the admin's name. */
export function providerName(provider: string): string {
  return NAMES[provider] ?? provider;
}
