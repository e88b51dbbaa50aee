import type { en } from "./en";

type En = typeof en;
type Plural = { other: string } & Partial<Record<Intl.LDMLPluralRule, string>>;

export type Key = keyof En;
/** The texts of one language: the same keys as English, with plural forms where English has them. */
export type Messages = { readonly [K in Key]: En[K] extends string ? string : Plural };

type Placeholders<S> = S extends `${string}{${infer Name}}${infer Rest}`
  ? Name | Placeholders<Rest>
  : never;
type PlaceholdersOf<K extends Key> = En[K] extends string
  ? Placeholders<En[K]>
  : Placeholders<En[K][keyof En[K]]>;
/** The second argument of `t`: a value for each placeholder, or nothing if the text has none. */
export type Values<K extends Key> = [PlaceholdersOf<K>] extends [never]
  ? []
  : [Record<PlaceholdersOf<K>, string | number>];
