# scripts/dist fills in the version and the checksum.
class Atelier < Formula
  desc "Workspace server for AI agents"
  homepage "https://github.com/OWNER/atelier"
  url "https://github.com/OWNER/atelier/releases/download/v@VERSION@/@ARCHIVE@"
  sha256 "@SHA256@"
  license any_of: ["MIT", "Apache-2.0"]

  depends_on :linux

  def install
    bin.install "atelier"
    (lib/"atelier").install "minilm"
  end

  service do
    run [opt_bin/"atelier", "serve", "--data", var/"atelier"]
    keep_alive true
  end

  test do
    assert_match version.to_s, shell_output("#{bin}/atelier --version")
  end
end
