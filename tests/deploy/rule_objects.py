"""Make what others need of ``deploy/prometheus/sloserve.rules.yaml``, which is the one source of rules and alerts.

``python -m tests.deploy.rule_objects`` writes the PrometheusRule of Kustomize and the copy inside the Helm chart, which
can read no file outside its own folder.
"""

from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
SOURCE: Final = ROOT / "deploy" / "prometheus" / "sloserve.rules.yaml"
MADE: Final = (
    "# Made from deploy/prometheus/sloserve.rules.yaml by `python -m tests.deploy.rule_objects`: change that file.\n"
)
OBJECT: Final = """\
# Needs the Prometheus operator; leave ../alerts out of kustomization.yaml where there is none.
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata: {name: sloserve}
spec:
"""


def made_from(source: str) -> dict[Path, str]:
    """Return the text of each file that is made from the text of the source."""
    rules = source[source.index("groups:\n") :]
    indented = "".join(f"  {line}" if line.strip() else line for line in rules.splitlines(keepends=True))
    return {
        ROOT / "deploy" / "kubernetes" / "alerts" / "rules.yaml": MADE + OBJECT + indented,
        ROOT / "deploy" / "helm" / "sloserve" / "files" / "sloserve.rules.yaml": MADE + rules,
    }


if __name__ == "__main__":
    for path, text in made_from(SOURCE.read_text()).items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
