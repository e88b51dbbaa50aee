// The planner reads `role` and `capabilities` of an agent's metadata; the rest is the owner's.

export interface Known {
  role: string;
  capabilities: string[];
  rest: Record<string, unknown>;
}

export function readMetadata(metadata: Record<string, unknown>): Known {
  const { role, capabilities, ...rest } = metadata;
  const known: Known = { role: "", capabilities: [], rest };
  // What has an unexpected shape is left as it is, among the rest.
  if (typeof role === "string") known.role = role;
  else if (role !== undefined) rest.role = role;
  if (isTexts(capabilities)) known.capabilities = [...new Set(capabilities)];
  else if (capabilities !== undefined) rest.capabilities = capabilities;
  return known;
}

export function writeMetadata({ role, capabilities, rest }: Known): Record<string, unknown> {
  return {
    ...rest,
    ...(role ? { role } : {}),
    ...(capabilities.length > 0 ? { capabilities } : {}),
  };
}

function isTexts(value: unknown): value is string[] {
  return Array.isArray(value) && value.every((item) => typeof item === "string");
}
