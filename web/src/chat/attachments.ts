/** Gives pasted files names of their own: browsers call every pasted picture `image.png`. */
export function namePasted(files: readonly File[], now: Date): File[] {
  const time = now.toISOString().slice(0, 19).replaceAll(/[T:]/g, "-");
  return files.map((file, index) => {
    if (!/^image\.\w+$/.test(file.name)) return file;
    const number = index > 0 ? `-${index + 1}` : "";
    const name = `pasted-${time}${number}${file.name.slice("image".length)}`;
    return new File([file], name, { type: file.type });
  });
}
