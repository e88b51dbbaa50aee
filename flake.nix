# `nix run .` builds Atelier from this checkout and starts it.
{
  description = "The workspace server for AI agents";

  inputs.nixpkgs.url = "github:NixOS/nixpkgs/nixos-unstable";

  outputs =
    { self, nixpkgs }:
    let
      systems = [
        "x86_64-linux"
        "aarch64-linux"
      ];
      forEach = make: nixpkgs.lib.genAttrs systems (system: make nixpkgs.legacyPackages.${system});
      version = (nixpkgs.lib.importTOML ./Cargo.toml).workspace.package.version;
    in
    {
      packages = forEach (pkgs: rec {
        console = pkgs.buildNpmPackage {
          pname = "atelier-console";
          inherit version;
          src = ./web;
          npmDeps = pkgs.importNpmLock { npmRoot = ./web; };
          npmConfigHook = pkgs.importNpmLock.npmConfigHook;
          installPhase = "cp -r dist $out";
        };
        default = pkgs.rustPlatform.buildRustPackage {
          pname = "atelier";
          inherit version;
          src = ./.;
          cargoLock.lockFile = ./Cargo.lock;
          cargoBuildFlags = [
            "--package"
            "atelier"
          ];
          preBuild = "cp -r ${console} web/dist";
          # The tests need PostgreSQL, Qdrant and an S3 server; `make test` runs them.
          doCheck = false;
          meta.mainProgram = "atelier";
        };
      });
    };
}
