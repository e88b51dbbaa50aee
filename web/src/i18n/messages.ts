import type { en } from "./en";

type En = typeof en;
type Plural = { other: string } & Partial<Record<Intl.LDMLPluralRule, string>>;

export type Key = keyof En;
/** A whole set of texts: the same keys as English, with plural forms where English has them. */
export type Messages = { readonly [K in Key]: En[K] extends string ? string : Plural };

type Holes<S> = S extends `${string}{${infer Hole}}${infer Rest}` ? Hole | Holes<Rest> : never;
type HolesOf<K extends Key> = En[K] extends string ? Holes<En[K]> : Holes<En[K][keyof En[K]]>;
/** What a text needs to be told: nothing, or a value for each of its `{holes}`. */
export type Filling<K extends Key> = [HolesOf<K>] extends [never]
  ? []
  : [Record<HolesOf<K>, string | number>];
