"""ATen's type promotion: tensors of one or more dimensions, 0-dimensional tensors and Python scalars weigh differently. And casts."""

import torch

ALL = {
    "bool": torch.bool,
    "u8": torch.uint8,
    "i8": torch.int8,
    "i16": torch.int16,
    "i32": torch.int32,
    "i64": torch.int64,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "f32": torch.float32,
    "f64": torch.float64,
}


def cases(suite):
    line = {s: torch.tensor([0, 1, 1, 0, 1] if s == "bool" else [0, 1, 2, 5, 7]).to(d) for s, d in ALL.items()}
    point = {s: torch.tensor(1 if s == "bool" else 3).to(d) for s, d in ALL.items()}
    for op in ("add", "mul", "maximum"):
        with suite.group(f"promote_{op}", tol="exact") as g:
            for s, a in line.items():
                for t, b in line.items():
                    if s <= t:
                        g.add(f"{s}_{t}", getattr(torch, op), a, b)
    with suite.group("promote_point", tol="exact") as g:
        for s, a in line.items():
            for t, b in point.items():
                g.add(f"{s}_{t}", lambda x, y: x * y, a, b)
    with suite.group("promote_scalar", tol="exact") as g:
        for s, a in line.items():
            g.add(f"{s}_plus_int", lambda x: x + 2, a)
            g.add(f"{s}_times_float", lambda x: x * 0.5, a)
            g.add(f"{s}_times_true", lambda x: x * True, a)
            g.add(f"{s}_lt_float", lambda x: x < 1.5, a)
            g.add(f"{s}_where_float", lambda x: torch.where(x > 1, x, 0.5), a)
            if s != "bool":
                g.add(f"{s}_sub_int", lambda x: x - 1, a)
    with suite.group("promote_div") as g:
        for s, a in line.items():
            g.add(f"{s}_div_i32", torch.div, a, line["i32"] + 1)
            g.add(f"{s}_div_int", lambda x: x / 4, a)
            g.add(f"{s}_point", torch.div, a, point["i64"])
    with suite.group("promote_compare", tol="exact") as g:
        for s, a in line.items():
            g.add(f"{s}_eq_f64", torch.eq, a, line["f64"])
            g.add(f"{s}_le_i16", torch.le, a, line["i16"])
    with suite.group("promote_where", tol="exact") as g:
        for s, t in (("f16", "f32"), ("i32", "f16"), ("u8", "i8"), ("bf16", "f16"), ("i64", "f32"), ("bool", "i16")):
            g.add(f"{s}_{t}", lambda c, x, y: torch.where(c, x, y), line["bool"], line[s], line[t])
            g.add(f"cat_{s}_{t}", lambda x, y: torch.cat([x, y]), line[s], line[t])
    with suite.group("cast", tol="exact") as g:
        whole = torch.tensor([0.0, 1.0, -1.0, 2.9, -2.9, 100.5, 0.4])
        for s, a in line.items():
            for t, d in ALL.items():
                g.add(f"{s}_to_{t}", lambda x, d=d: x.to(d), a)
        for t, d in ALL.items():
            if t != "u8":
                g.add(f"fractions_to_{t}", lambda x, d=d: x.to(d), whole)
    with suite.group("cast_rounding", tol="exact") as g:
        x = torch.tensor([1.0 + 2**-9, 1.0 + 3 * 2**-9, 1.0 + 2**-11, 65504.0, 65519.0, 65520.0, 1e-7, 6e-8, 2.9e-8, -1e30, 3.4e38, float("nan"), float("-inf")])
        g.add("f32_to_bf16", lambda t: t.to(torch.bfloat16), x)
        g.add("f32_to_f16", lambda t: t.to(torch.float16), x)
        g.add("f64_to_f32", lambda t: (t.double() * 1.1).float(), x)
        g.add("nan_is_true", lambda t: t.bool(), x)
        g.add("through_bf16", lambda t: t.to(torch.bfloat16).float(), x)
        g.add("type_as", lambda t, u: t.type_as(u), x, line["f16"])
        g.add("to_other", lambda t, u: t.to(u), x, line["bf16"])
        g.add("double_half_float", lambda t: t.double().half().float(), x)
        g.add("i64_to_f32", lambda t: t.float(), torch.tensor([(1 << 24) + 1, (1 << 53) + 1, -(1 << 62) - 1]))
        g.add("wrap_to_i8", lambda t: t.to(torch.int8), torch.tensor([127, 128, 255, 256, -129, 1 << 40]))
        g.add("wrap_to_u8", lambda t: t.to(torch.uint8), torch.tensor([127, 128, 255, 256, -1, 1 << 40]))
        g.add("view_dtype", lambda t: t.view(torch.int32), x)
