// The planner reads `role` and `capabilities` from an agent's metadata. The owner is free to use all other fields.

export interface KnownMetadata {
  role: string;
  capabilities: string[];
  rest: Record<string, unknown>;
}

export function readMetadata(metadata: Record<string, unknown>): KnownMetadata {
  const { role, capabilities, ...rest } = metadata;
  const known: KnownMetadata = { role: "", capabilities: [], rest };
  // Values of an unexpected type are kept unchanged in `rest`.
  if (typeof role === "string") known.role = role;
  else if (role !== undefined) rest.role = role;
  if (isTexts(capabilities)) known.capabilities = [...new Set(capabilities)];
  else if (capabilities !== undefined) rest.capabilities = capabilities;
  return known;
}

export function writeMetadata({
  role,
  capabilities,
  rest,
}: KnownMetadata): Record<string, unknown> {
  return {
    ...rest,
    ...(role ? { role } : {}),
    ...(capabilities.length > 0 ? { capabilities } : {}),
  };
}

function isTexts(value: unknown): value is string[] {
  return Array.isArray(value) && value.every((item) => typeof item === "string");
}
