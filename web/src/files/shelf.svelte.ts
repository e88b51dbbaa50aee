import * as api from "../api/files";

interface Upload {
  id: number;
  path: string;
  part: number;
  error: unknown;
}

/** The files of the conversation on show, and those on their way to it. */
export class Shelf {
  readonly conversation: string;
  workspace = $state.raw<api.Workspace | null>(null);
  error = $state.raw<unknown>(null);
  uploads = $state<Upload[]>([]);
  #loading = false;
  #again = false;
  #next = 0;

  constructor(conversation: string) {
    this.conversation = conversation;
  }

  async load(): Promise<void> {
    this.#again = true;
    if (this.#loading) return;
    this.#loading = true;
    while (this.#again) {
      this.#again = false;
      try {
        this.workspace = await api.workspace(this.conversation);
        this.error = null;
      } catch (error) {
        this.error = error;
      }
    }
    this.#loading = false;
  }

  async send(files: Iterable<File>, folder: string): Promise<void> {
    // One after another: each shows how far it is, and the line is the limit anyway.
    for (const file of files) {
      const path = folder + (file.webkitRelativePath || file.name);
      this.uploads.push({ id: this.#next++, path, part: 0, error: null });
      const shown = this.uploads.at(-1);
      if (!shown) return;
      try {
        await api.upload(this.conversation, path, file, (part) => (shown.part = part));
        this.uploads = this.uploads.filter(({ id }) => id !== shown.id);
      } catch (error) {
        shown.error = error;
      }
      await this.load();
    }
  }

  dismiss(id: number): void {
    this.uploads = this.uploads.filter((upload) => upload.id !== id);
  }
}

let shown: Shelf | null = null;

export function showShelf(shelf: Shelf | null): void {
  shown = shelf;
}

export const shownShelf = (conversation?: string): Shelf | null =>
  !conversation || shown?.conversation === conversation ? shown : null;
