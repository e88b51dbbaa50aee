import * as api from "../api/files";
import { Loader } from "../state/loader";

interface Upload {
  id: number;
  path: string;
  /** The fraction that has been sent, from 0 to 1. */
  progress: number;
  error: unknown;
}

/** The files of the open conversation, and the uploads to it. */
export class ConversationFiles {
  readonly conversation: string;
  workspace = $state.raw<api.Workspace | null>(null);
  error = $state.raw<unknown>(null);
  uploads = $state<Upload[]>([]);
  #loader = new Loader(() => this.#load());
  #nextId = 0;

  constructor(conversation: string) {
    this.conversation = conversation;
  }

  load(): Promise<void> {
    return this.#loader.load();
  }

  async #load(): Promise<void> {
    try {
      this.workspace = await api.workspace(this.conversation);
      this.error = null;
    } catch (error) {
      this.error = error;
    }
  }

  async upload(files: Iterable<File>, folder: string): Promise<void> {
    // One upload at a time: parallel uploads would share the same bandwidth.
    for (const file of files) {
      const path = folder + (file.webkitRelativePath || file.name);
      this.uploads.push({ id: this.#nextId++, path, progress: 0, error: null });
      const shown = this.uploads.at(-1);
      if (!shown) return;
      try {
        await api.upload(this.conversation, path, file, (progress) => (shown.progress = progress));
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

let shown = $state.raw<ConversationFiles | null>(null);

export function setOpenFiles(files: ConversationFiles | null): void {
  shown = files;
}

export const openFiles = (conversation?: string): ConversationFiles | null =>
  !conversation || shown?.conversation === conversation ? shown : null;
