"""The files in deploy/ are valid for the tools that read them, and agree with each other and with the program.

Expects ATELIER (the program) and the tools of scripts/deploytools on PATH.
"""

import json
import os
import re
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

import jsonschema
import kubernetes_validate
import yaml

ATELIER = os.environ["ATELIER"]
ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
CHART = DEPLOY / "helm" / "atelier"
# Prometheus operator and Language Operator bring their own kinds, which Kubernetes' schemas do not have.
FOREIGN = ("monitoring.coreos.com/", "langop.io/")


def run(*command, env=None, **options):
    done = subprocess.run(
        command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env={**os.environ, **(env or {})}, **options
    )
    if done.returncode != 0:
        raise AssertionError(f"{' '.join(map(str, command))} failed:\n{done.stdout}")
    return done.stdout


def rendered(*flags, release="atelier"):
    """What the chart makes, by kind."""
    command = ["helm", "template", release, CHART, "--namespace", "team", *flags]
    text = subprocess.run(command, text=True, capture_output=True, check=True).stdout
    return {resource["kind"]: resource for resource in yaml.safe_load_all(text) if resource}


def container_of(deployment):
    return deployment["spec"]["template"]["spec"]["containers"][0]


def print_config(environment):
    """The configuration that the program reads from these variables; it refuses settings that it does not know."""
    with tempfile.TemporaryDirectory() as folder:
        clean = {"PATH": os.environ["PATH"], "HOME": folder, **environment}
        done = subprocess.run(
            [ATELIER, "serve", "--print-config"], env=clean, cwd=folder, text=True, capture_output=True
        )
        assert done.returncode == 0, done.stderr
        return done.stdout


def known_settings():
    table = (ROOT / "docs/reference/settings.md").read_text()
    return set(re.findall(r"`(ATELIER_[A-Z0-9_]+)`", table))


def known_metrics():
    return set(re.findall(r"^\| `(atelier_[a-z0-9_]+)`", (ROOT / "docs/reference/metrics.md").read_text(), re.M))


def check_resource(resource):
    if not resource["apiVersion"].startswith(FOREIGN):
        for version in ["1.27", kubernetes_validate.latest_version()]:
            kubernetes_validate.validate(resource, version, strict=True)


class Kubernetes(unittest.TestCase):
    def test_manifests_are_valid(self):
        """MC-10"""
        schema = json.loads(Path(__file__).with_name("langop.schema.json").read_text())
        kinds = []
        for file in sorted((DEPLOY / "kubernetes").glob("*.yaml")):
            for resource in yaml.safe_load_all(file.read_text()):
                kinds.append((resource["kind"], resource["metadata"]["name"]))
                check_resource(resource)
                if resource["apiVersion"].startswith("langop.io/"):
                    jsonschema.validate(resource, schema)
        self.assertEqual(kinds, [
            ("LanguageAgent", "daily-reporter"), ("LanguageAgent", "log-analyzer"), ("LanguageCluster", "research-team"),
            ("LanguageTool", "workspace"), ("PersistentVolumeClaim", "agent-workspace"), ("LanguageAgent", "my-agent"),
            ("Deployment", "workspace"), ("Service", "workspace"),
        ])  # fmt: skip
        with self.assertRaises(jsonschema.ValidationError):
            jsonschema.validate({**resource, "kind": "LanguageTool"}, schema)

    def test_the_workspace_tool_runs_without_root_on_port_80(self):
        """MC-10"""
        deployment, service = yaml.safe_load_all((DEPLOY / "kubernetes/workspace.yaml").read_text())
        pod, container = deployment["spec"]["template"]["spec"], container_of(deployment)
        self.assertIn({"name": "net.ipv4.ip_unprivileged_port_start", "value": "0"}, pod["securityContext"]["sysctls"])
        self.assertEqual(pod["securityContext"]["fsGroup"], pod["securityContext"]["runAsUser"])
        self.assertEqual(service["spec"]["ports"][0]["targetPort"], container["ports"][0]["name"])
        self.assertEqual(container["ports"][0]["containerPort"], 80)


class Chart(unittest.TestCase):
    everything = [
        "--set=ingress.enabled=true,ingress.tlsSecret=cert,ingress.className=nginx", "--set=autoscaling.enabled=true",
        "--set=serviceMonitor.enabled=true,serviceMonitor.labels.release=prometheus", "--set=prometheusRule.enabled=true",
        "--set=podAnnotations.a=b,nodeSelector.a=b,image.tag=edge",
    ]  # fmt: skip

    def test_chart_has_no_defects(self):
        """DP-02"""
        run("helm", "lint", "--strict", CHART)
        # `helm package` leaves links out, so the alerts have to be in the archive.
        with tempfile.TemporaryDirectory() as folder:
            run("helm", "package", CHART, "--destination", folder)
            (archive,) = Path(folder).glob("*.tgz")
            flags = ["--set=prometheusRule.enabled=true", "--show-only=templates/monitoring.yaml"]
            self.assertIn("AtelierNodeDown", run("helm", "template", "x", archive, *flags))

    def test_every_form_of_the_chart_is_valid(self):
        """DP-02"""
        for flags in [[], self.everything, ["--set=networkPolicy.enabled=false,podDisruptionBudget.enabled=false"]]:
            for resource in rendered(*flags).values():
                with self.subTest(kind=resource["kind"], flags=flags):
                    check_resource(resource)

    def test_chart_makes_what_it_promises(self):
        """DP-02"""
        usual = {"Deployment", "Service", "PodDisruptionBudget", "NetworkPolicy"}
        self.assertEqual(set(rendered()), usual)
        found = rendered(*self.everything)
        optional = {"Ingress", "HorizontalPodAutoscaler", "ServiceMonitor", "PrometheusRule"}
        self.assertEqual(set(found), usual | optional)
        self.assertNotIn("replicas", found["Deployment"]["spec"])
        pod = found["Deployment"]["spec"]["template"]["spec"]
        container = container_of(found["Deployment"])
        self.assertIs(pod["securityContext"]["runAsNonRoot"], True)
        security = container["securityContext"]
        self.assertEqual(
            (security["readOnlyRootFilesystem"], security["allowPrivilegeEscalation"], security["capabilities"]),
            (True, False, {"drop": ["ALL"]}),
        )
        self.assertEqual(container["readinessProbe"]["httpGet"]["path"], "/ready")
        self.assertEqual(container["livenessProbe"]["httpGet"]["path"], "/health")
        self.assertEqual(container["image"], "registry.example/atelier:edge")
        # Every selector finds the pods.
        labels = found["Deployment"]["spec"]["template"]["metadata"]["labels"]
        service = found["Service"]
        selectors = [
            found["Deployment"]["spec"]["selector"]["matchLabels"], service["spec"]["selector"],
            found["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"],
            found["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"],
        ]  # fmt: skip
        for selector in selectors:
            self.assertLessEqual(selector.items(), labels.items())
        monitored = found["ServiceMonitor"]["spec"]
        self.assertLessEqual(monitored["selector"]["matchLabels"].items(), service["metadata"]["labels"].items())
        ports = {port["name"]: port["containerPort"] for port in container["ports"]}
        self.assertIn(monitored["endpoints"][0]["port"], ports)
        self.assertTrue(all(port["targetPort"] in ports for port in service["spec"]["ports"]))
        alerts = yaml.safe_load((DEPLOY / "monitoring/alerts.yaml").read_text())
        self.assertEqual(found["PrometheusRule"]["spec"], alerts)

    def test_unknown_values_are_refused(self):
        """DP-02"""
        for flag in ["replica=3", "image.name=x", "settingsSecret=", "settings.lower=x", "publicUrl=atelier"]:
            with self.subTest(flag), self.assertRaises(subprocess.CalledProcessError):
                rendered("--set", flag)

    def test_program_reads_the_settings_of_the_chart(self):
        """DP-02"""
        container = container_of(rendered(*self.everything)["Deployment"])
        environment = {entry["name"]: entry["value"] for entry in container["env"]}
        secret = container["envFrom"][0]["secretRef"]["name"]
        self.assertEqual(secret, "atelier")
        known = known_settings()
        self.assertEqual([name for name in environment if name.startswith("ATELIER_") and name not in known], [])
        config = print_config({**environment, "ATELIER_DATABASE_URL": "postgres://a:b@db/atelier"})
        for line in ['keys = "/keys"', 'listen = "0.0.0.0:7420"', 'public_url = "https://atelier.example.com"']:
            self.assertIn(line, config)
        # The folders that the program writes to are volumes, and the keys are mounted.
        mounts = {mount["mountPath"]: mount.get("readOnly", False) for mount in container["volumeMounts"]}
        self.assertEqual(mounts, {"/data": False, "/keys": True, "/tmp": False})


class Compose(unittest.TestCase):
    def test_compose_files_are_valid(self):
        """DP-01"""
        run("check-jsonschema", "--builtin-schema", "vendor.compose-spec", *DEPLOY.glob("compose*.yaml"))

    def test_program_reads_the_settings_of_the_nodes(self):
        """DP-01"""
        services = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
        example = dict(
            line.split("=", 1) for line in (DEPLOY / "env.example").read_text().splitlines() if re.match(r"[A-Z]", line)
        )
        used = set()

        def value(text):
            def variable(found):
                used.add(found[1])
                return example.get(found[1]) or (found[3] if found[2] == ":-" else "")
            return re.sub(r"\$\{([A-Z0-9_]+)(:[-?])([^}]*)\}", variable, text)

        for name in ["node1", "node2", "node3"]:
            node = services[name]
            environment = {name: value(text) for name, text in node["environment"].items()}
            config = print_config(environment)
            self.assertIn('public_url = "http://localhost:7420"', config)
            self.assertIn('object_store = "s3://atelier"', config)
            self.assertEqual([n for n in environment if n.startswith("ATELIER_") and n not in known_settings()], [])
            self.assertIs(node["read_only"], True)
            self.assertIn(f"{name}:7420", services["proxy"]["environment"]["NODES"].split())
        for service in services.values():
            for text in (service.get("environment") or {}).values():
                value(text)
        self.assertEqual(set(example) - used, set(), "every variable of env.example is used")

    def test_proxy_configuration_is_valid(self):
        """DP-01"""
        for env in [{"SITE": "http://:7420", "NODES": "node1:7420 node2:7420"}, {}]:
            run("caddy", "validate", "--config", DEPLOY / "Caddyfile", "--adapter", "caddyfile", env=env)


class Systemd(unittest.TestCase):
    def test_unit_is_valid_and_starts_the_program(self):
        """DP-03"""
        unit = (DEPLOY / "systemd/atelier.service").read_text()
        command = re.search(r"^ExecStart=(.*)$", unit, re.M)[1].split()
        self.assertEqual(command[:2], ["/usr/bin/atelier", "serve"])
        run(ATELIER, *command[1:], "--print-config", cwd="/")
        if shutil.which("systemd-analyze"):
            with tempfile.TemporaryDirectory() as folder:
                # The program is not installed here.
                installed = Path(folder) / "atelier.service"
                installed.write_text(unit.replace("/usr/bin/atelier", ATELIER))
                run("systemd-analyze", "verify", "--man=no", installed)


class Release(unittest.TestCase):
    def test_workflow_is_valid_and_makes_what_is_tested(self):
        """DP-05"""
        file = ROOT / ".github/workflows/release.yml"
        run("check-jsonschema", "--builtin-schema", "vendor.github-workflows", file)
        jobs = yaml.safe_load(file.read_text())["jobs"]
        steps = [step.get("run") for step in jobs["packages"]["steps"]]
        self.assertLess(steps.index("make dist"), steps.index("scripts/test-dist dist"))
        for job in ["publish", "image"]:
            self.assertEqual((jobs[job]["needs"], jobs[job]["if"]), ("packages", "github.event_name == 'push'"))


class Monitoring(unittest.TestCase):
    def test_alerts_fire_when_they_should(self):
        """DP-04"""
        run("promtool", "check", "rules", DEPLOY / "monitoring/alerts.yaml")
        run("promtool", "test", "rules", "alerts_test.yaml", cwd=Path(__file__).parent)

    def test_every_alert_is_tested_and_explained(self):
        """DP-04"""
        (group,) = yaml.safe_load((DEPLOY / "monitoring/alerts.yaml").read_text())["groups"]
        names = {rule["alert"] for rule in group["rules"]}
        cases = yaml.safe_load(Path(__file__).with_name("alerts_test.yaml").read_text())["tests"]
        firing = {case["alertname"] for test in cases for case in test["alert_rule_test"] if case.get("exp_alerts")}
        self.assertEqual(firing, names)
        explained = (ROOT / "docs/deploying.md").read_text()
        self.assertEqual([name for name in names if f"`{name}`" not in explained], [])

    def expressions(self):
        (group,) = yaml.safe_load((DEPLOY / "monitoring/alerts.yaml").read_text())["groups"]
        dashboard = json.loads((DEPLOY / "monitoring/dashboard.json").read_text())
        panels = [panel for panel in dashboard["panels"] if panel["type"] != "row"]
        shown = [target["expr"] for panel in panels for target in panel["targets"]]
        return [rule["expr"] for rule in group["rules"]], shown

    def test_dashboard_can_be_read(self):
        """DP-04"""
        _, shown = self.expressions()
        rules = [{"record": "x:x", "expr": expr.replace("$__rate_interval", "5m"), "labels": {"n": str(number)}}
                 for number, expr in enumerate(shown)]  # fmt: skip
        with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
            yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}, file)
            file.flush()
            run("promtool", "check", "rules", file.name)
        dashboard = json.loads((DEPLOY / "monitoring/dashboard.json").read_text())
        ids = [panel["id"] for panel in dashboard["panels"]]
        self.assertEqual(len(ids), len(set(ids)))

    def test_metrics_exist(self):
        """DP-04"""
        known = known_metrics()
        for expr in [expr for group in self.expressions() for expr in group]:
            for name in re.findall(r"\batelier_[a-z0-9_]+", expr):
                self.assertIn(re.sub(r"_(bucket|count|sum)$", "", name), known, expr)


if __name__ == "__main__":
    unittest.main()
