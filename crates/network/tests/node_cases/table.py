"""Makes src/operators/verified.csv from what examples/node_cases.rs printed.

    cargo run --release -p gatestream-network --example node_cases -- --unchecked FOLDER... > results.tsv
    python table.py results.tsv [--write]

A version of an operator is verified if it passed a case of its own, or has the inputs, attributes and outputs of
a version that did, and if no case of it has another result than expected. Refused cases do not count. Each package
has its folder, named as its version.
"""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from pathlib import Path

from onnx import defs, load

TABLE = Path(__file__).resolve().parents[2] / "src" / "operators" / "verified.csv"
# Versions without cases, by the tests that compare them with ONNX Runtime: tests/cases, and published models
# (benches/references/published), of which nsnet2 has Constant.
ELSEWHERE = {("com.microsoft", "DynamicQuantizeLSTM"): {1}, ("", "Constant"): {11}}

# Cases with another result than ONNX Runtime's, which a later package has corrected under the same name.
WITHDRAWN = {
    "1.6.0/test_resize_upsample_sizes_nearest_ceil_half_pixel",
    "1.6.0/test_resize_upsample_sizes_nearest_floor_align_corners",
    "1.6.0/test_resize_upsample_sizes_nearest_round_prefer_ceil_asymmetric",
    "1.9.0/test_convtranspose_autopad_same",
    "1.16.2/test_averagepool_3d_dilations_large_count_include_pad_is_1_ceil_mode_is_True",
}


def main() -> int:
    lines = [line.rstrip("\n").split("\t") for line in open(sys.argv[1], encoding="utf-8")]
    newest = newest_of_each({line[0] for line in lines})
    lines = [line for line in lines if line[0] in newest]
    schemas = defaultdict(dict)
    for schema in defs.get_all_schemas_with_history():
        schemas[schema.domain, schema.name][schema.since_version] = schema
    outcomes = defaultdict(Counter)
    wrong = []
    for path, opset, operators, form, outcome, detail in lines:
        if " " in operators or "/".join(path.split("/")[-2:]) in WITHDRAWN:
            continue
        domain, _, name = operators.rpartition("::")
        versions = schemas.get((domain, name), {})
        # Sets of other domains than ONNX's: the newest.
        known = [since for since in versions if domain or since <= int(opset)]
        outcomes[domain, name, max(known, default=1)][outcome] += 1
        if outcome in ("differs", "panics"):
            wrong.append((operators, max(known, default=1), outcome, form, path, detail))
    rows = []
    for domain, name in sorted({key[:2] for key in outcomes} | set(ELSEWHERE)):
        versions = sorted(schemas.get((domain, name), {1: None}))
        of = {since: outcomes[domain, name, since] for since in versions}
        passed = {since for since in versions if of[since]["passed"] and not of[since]["differs"]}
        likely = {
            since
            for since in versions
            if not of[since]["differs"] and any(same(schemas[domain, name].get(since), schemas[domain, name].get(other)) for other in passed)
        }
        verified = passed | likely | ELSEWHERE.get((domain, name), set())
        # Experimental operators that ONNX has dropped are not there.
        if any(of[since]["passed"] for since in versions) or verified:
            rows.append((domain, name, verified, set(versions) - verified))
    text = "domain,operator,verified,other\n"
    for domain, name, *sets in rows:
        text += ",".join([domain, name, *(" ".join(map(str, sorted(one))) for one in sets)]) + "\n"
    if "--write" in sys.argv:
        TABLE.write_text(text, encoding="utf-8")
    for operators, since, outcome, form, path, detail in sorted(wrong):
        print(f"{operators}-{since} {outcome} {form} {'/'.join(path.split('/')[-2:])}: {detail[:200]}")
    total = Counter(line[4] for line in lines)
    print(dict(total), "of", len(lines), "runs;", sum(bool(row[2]) for row in rows), "operators verified")
    return 0


def newest_of_each(paths: set) -> set:
    """Of equal models in several packages the newest, whose data may have been corrected; in one package the last."""

    def version(path: str) -> tuple:
        numbers = Path(path).parent.name.split(".")
        return tuple(int(number) for number in numbers if number.isdigit())

    models = {}
    for path in sorted(sorted(paths), key=version):
        model = load(Path(path) / "model.onnx", load_external_data=False)
        model.producer_name = model.producer_version = model.graph.name = ""
        model.ir_version = 0
        models[model.SerializeToString()] = path
    return set(models.values())


def same(one, other) -> bool:
    """Whether two versions differ in the types of values at most."""
    if one is None or other is None:
        return one is other

    def form(schema) -> tuple:
        attributes = tuple(sorted((a.name, str(a.type), str(a.default_value)) for a in schema.attributes.values()))
        return attributes, *(tuple((p.name, str(p.option)) for p in ports) for ports in (schema.inputs, schema.outputs))

    return form(one) == form(other)


if __name__ == "__main__":
    sys.exit(main())
