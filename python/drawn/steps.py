"""Steps of programs, as text with holes.

{x} is a float, {h} a half, {i} an integer, {b} a bool, {a} anything, {a:n} no bool, {x3} and {x4} floats of three and four dimensions;
{d} is a dimension of the value before it, {n} a small integer, {k} a size, {s} a number, {t} a dtype.

Which of equal elements an operator takes is free in some, and with it where a gradient goes: these take detached values.
"""

from __future__ import annotations

POINTWISE = """
{x}.exp().clamp(max=50)|{x}.sin()|{x}.tanh()|{x}.sigmoid()|{x}.abs().sqrt()|torch.relu({x})|F.gelu({x})|F.silu({x})|{x}.square()
-{a:n}|{x}.reciprocal().clamp(-9, 9)|{x}.floor()|{x}.round()|{x}.log1p().nan_to_num(0.5)|{x}.erf()|{x}.sign()|{x}.clamp(-1, 1)
{a:n} + {a:n}|{a:n} - {a:n}|{a:n} * {a:n}|{a:n} + {s}|{a:n} * {s}|{s} - {a:n}|torch.maximum({a}, {a})|torch.minimum({a}, {a})
{x} / ({x}.abs() + 1)|torch.atan2({x}, {x})|torch.hypot({x}, {x})|torch.where({b}, {a}, {a})|torch.where({a} > {a}, {x}, {x})
{a} > {a}|{a} == {a}|{a} <= {s}|~{b}|{b} & {b}|{b}.bitwise_or({b})|{x}.isnan()|{x}.lerp({x}, 0.3)|torch.addcmul({x}, {x}, {x}, value=0.5)
{i} // ({i}.abs() + 1)|{i} % ({i}.abs() + 1)|{i} & {i}|{i} ^ {i}|{i} >> 1|{i} << 1|{a}.masked_fill({b}, {n})|{x}.copysign({x})
{a}.to(torch.{t})|{a}.float()|{x}.long()|{a}.bool()|{a}.clone()|{a}.contiguous()|{x}.detach()|torch.logical_and({a}, {a})
F.dropout({x}, 0.5, training=False)|F.hardtanh({x})|F.softplus({x})|F.leaky_relu({x}, 0.1)|torch.zeros_like({a})|{x}.new_ones({k})
"""
REDUCTIONS = """
{a}.sum({d})|{a}.sum({d}, keepdim=True)|{x}.mean({d})|{x}.mean({d}, keepdim=True)|{a:n}.amax({d})|{a:n}.amin({d}, keepdim=True)|{a}.sum()
{x}.mean()|{a:n}.max()|{x}.var({d}, unbiased=False)|{x}.std({d}, unbiased=False, keepdim=True)|{x}.softmax({d})|{x}.log_softmax({d})
{x}.logsumexp({d})|{a:n}.argmax({d})|{a:n}.argmin({d}, keepdim=True)|{a}.any({d})|{a}.all({d})|{a}.prod({d})|{a}.cumsum({d})|{x}.cummax({d})[0]
{x}.norm(dim={d}, keepdim=True)|F.layer_norm({x}, {x}.shape[-1:])|F.normalize({x}, dim={d})|{a}.count_nonzero({d})|{a:n}.detach().sort({d})[0]|{a:n}.sort({d}, stable=True)[0]|{a:n}.sort({d}, stable=True)[1]
{x}.detach().kthvalue(1, {d})[0]|{a:n}.max({d})[1]|{x}.cumprod({d}).clamp(-9, 9)|F.rms_norm({x}, {x}.shape[-1:])|{x}.sum((0, -1))|{x}.detach().median({d})[0]
F.mse_loss({x}, {x}.detach() * 0.5)|F.smooth_l1_loss({x}, {x}, reduction="none")|{a:n}.aminmax(dim={d}).max|{x}.logcumsumexp({d})
"""
VIEWS = """
{a}.transpose({d}, {d})|{a}.flip({d})|{a}.unsqueeze({d})|{a}.squeeze()|{a}.squeeze({d})|{a}.flatten()|{a}.reshape(-1)|{a}.narrow({d}, 0, 1)
{a}[..., ::2]|{a}[1:]|{a}[:-1]|{a}[0]|{a}[-1]|{a}[..., None, :]|{a}[None]|{a}[..., 0]|{a}.select({d}, -1)|{a}.diagonal()|{a}.movedim({d}, {d})
{a}.expand({k}, *{a}.shape)|{a}.repeat({n0}, *[1] * ({a}.dim() - 1))|{a}.roll({n}, {d})|{a}.roll({n})|{a}.unfold({d}, 2, 1)|{a}.t()|{a}.tril()
{a}.triu({n})|{a}.repeat_interleave(2, {d})|{a}.chunk(2, {d})[-1]|{a}.split(2, {d})[0]|{a}.unbind({d})[0]|{a}.view(-1)|{a}.mT|{a}.flatten(0, 1)
F.pad({a}, (1, 2))|F.pad({a}, (0, 0, 1, 0), value={n})|F.pad({a}, (-1, 1))|F.pad({x}[None], (1, 1), mode="reflect")[0]|{a}.rot90()|{a}.swapaxes(0, -1)
torch.cat([{a}, {a}], {d})|torch.stack([{a}, {a}], {d})|torch.cat([{a}, {a}[:1]])|{a}.as_strided((2, 2), (2, 1))|{a}.view_as({a})|{a}.broadcast_to({a}.shape)
{a}.reshape(1, -1).expand(3, -1)|torch.broadcast_tensors({a}, {a})[0]|{a}.unflatten(-1, (-1, 1))|F.pad({x}[None], (2, 0), mode="replicate")[0]
"""
INDEXING = """
{a}[{i}.abs().flatten()[:5] % {a}.shape[0]]|{a}.index_select({d}, torch.tensor([0, 0], device=dev))|{a}.gather({d}, torch.zeros_like({a}, dtype=torch.int64))
{a}.gather(0, ({i}.long() % {a}.shape[0]))|{x}.index_add(0, torch.zeros({x}.shape[0], dtype=torch.int64, device=dev), {x})|{a}[..., torch.arange({a}.shape[-1], device=dev).flip(0)]
{x}.scatter_add(0, torch.zeros_like({x}, dtype=torch.int64), {x})|{a}.scatter({d}, torch.zeros_like({a}, dtype=torch.int64)[..., :1], {n})
{a}.index_put((torch.tensor([0, -1], device=dev),), {a}[:1])|{x}.index_put((torch.tensor([0, 0], device=dev),), {x}[:1], accumulate=True)|F.embedding({i}.long() % {x}.shape[0], {x})
{a}.index_fill({d}, torch.tensor([0], device=dev), {n})|{a}.take({i}.long().abs() % {a}.numel())|torch.bucketize({x}, torch.tensor([-1.0, 0.0, 1.0], device=dev, dtype={x}.dtype))|F.one_hot({i}.long() % 4, 4)
{a}[torch.tensor([0], device=dev), ..., torch.tensor([-1], device=dev)]|torch.searchsorted({x}.sort()[0], {x})|{x}.scatter_reduce(0, torch.zeros_like({x}, dtype=torch.int64), {x}, "amax")
{a}.index_copy({d}, torch.tensor([0], device=dev), {a}.narrow({d}, 0, 1))|{a}.masked_fill({a} > {n}, {n})|torch.arange({a}.shape[0], device=dev)|torch.full_like({x}, {s})
"""
PRODUCTS = """
{x} @ {x}|{x} @ {x}.mT|{x}.mT @ {x}|F.linear({x}, {x})|torch.einsum("...i,...i->...", {x}, {x})|torch.outer({x}.flatten()[:7], {x}.flatten()[:5])
F.conv1d({x}.reshape(1, 1, -1), torch.ones(2, 1, 3, device=dev, dtype={x}.dtype) * 0.5, padding=1)|torch.baddbmm({x}, {x}, {x})|F.linear({x}, {x}, {x})
F.max_pool1d({x}.reshape(1, 1, -1), 2, ceil_mode=True)|F.avg_pool1d({x}.reshape(1, 1, -1), 3, 1, 1)|torch.addmm({x}, {x}, {x}.mT)|{x}.flatten().dot({x}.flatten())
F.scaled_dot_product_attention({x}[None], {x}[None], {x}[None])[0]|F.interpolate({x}.reshape(1, 1, -1), scale_factor=2.0)|F.group_norm({x}.reshape(1, 2, -1), 2)
"""
# Statements: what they write is a value of the program or an argument.
WRITES = """
{a}.add_({n})|{x}.mul_(0.5)|{a}.copy_({a})|{a}[0] = {n}|{a}[..., ::2] += {n}|{a}[1:] = {a}[:1]|{a}.transpose({d}, {d}).add_({a})|{a}.zero_()|{x}.relu_()|{x}.clamp_(-1, 1)
{a}.flatten()[0] = {n}|{a}.diagonal().fill_({n})|{a}[{b}] = {n}|{a}.masked_fill_({b}, {n})|{a}.select({d}, 0).mul_({n})|{x}.sub_({x})|{a}.unsqueeze({d}).add_({n})|{x}.sigmoid_()
{a}.index_fill_({d}, torch.tensor([0], device=dev), {n})|{x}.scatter_add_(0, torch.zeros_like({x}, dtype=torch.int64), {x})|{a}.fill_({n})|{a}.narrow({d}, 0, 1).copy_({a}.narrow({d}, -1, 1))
{x}.index_add_(0, torch.zeros({x}.shape[0], dtype=torch.int64, device=dev), {x})|{a}.view(-1)[::3] = {n}|{a}.t().mul_({n})|{a}[-1:].copy_({a}[:1])|{x}.addcmul_({x}, {x})
"""
# Writes through views that overlap, have gaps, are of another dtype, or of values computed before; operators with `out=`, whose
# operands are copies where eager reads them after it began to write.
VIEW_WRITES = """
{a}.unfold({d}, 2, 3).mul_({n})|{a}.unfold({d}, 1, 2).add_({n})|{a}.unfold({d}, 2, 4).copy_({a}.unfold({d}, 2, 4))|{a}.unfold({d}, 2, 1).fill_({n})|{a}.unfold({d}, 3, 7).fill_({n})
{a}.as_strided((2, 2), (2, 1)).add_({n})|{a}.as_strided((2,), (3,), 1).mul_({n})|{a}.as_strided((2, 2), (1, 1)).fill_({n})|{a}[..., 1::2].mul_({n})|{a}[::2].copy_({a}[:1])
{a}.view(torch.uint8)[..., ::2].fill_(1)|{x}.view(torch.int32).bitwise_and_(-2)|{h}.view(torch.int16).add_(1)|{x}.view(torch.int64)[..., :1] = 0|{i}.view(torch.uint8).zero_()
{a}.detach().add_({n})|{x}.mT.mul_({x}.mT)|{a}.movedim(0, -1).add_({n})|{a}.permute(*range({a}.dim() - 1, -1, -1)).mul_({n})|{a}.flatten(0, 1)[1:].add_({n})
{a}.expand(2, *{a}.shape)[0].add_({n})|{a}.diagonal(0, 0, -1).copy_({a}.diagonal(0, 0, -1).flip(0))|{a}.view(-1)[1:].copy_({a}.view(-1)[:-1].clone())|{a}.reshape(-1).add_({n})
{a}[1:].add_({a}[:-1])|{a}.flip({d}).add_({n})|{a}.swapaxes(0, -1)[0].zero_()|{a}.split(2, {d})[0].add_({n})|{a}.chunk(3, {d})[-1].mul_({n})|{a}.unbind({d})[-1].fill_({n})
{a}[..., :1].copy_({a}[..., -1:])|{a}.squeeze().add_({n})|{a}.view({a}.shape)[0].sub_({a}[-1])|{x}[0].exp_().clamp_(-9, 9)|{a}.t().copy_({a})|{a}.index_put_((torch.tensor([0], device=dev),), {a}[-1:])
{a}.transpose(0, -1)[:1].fill_({n})|{a}.narrow({d}, -1, 1).add_({a}.narrow({d}, 0, 1))|{x}.clamp_(max=0.1)|{x}[..., 0].copy_({a}[..., 0])|{a}.masked_scatter_({b}, {a}.flatten())|{a}.put_(torch.tensor([0], device=dev), {a}.flatten()[:1])
{a}.unflatten(-1, (-1, 1)).add_({n})|{a}.select({d}, 0).copy_({a}.select({d}, -1))|{a}[None].repeat(2, *[1] * {a}.dim())[0].add_({n})|{x}.lerp_({x}, 0.25)|{a}.where({b}, {a}).add_({n})
"""
OUTS = """
torch.add({a}, {a}, out={a})|torch.mul({x}, {x}, out={x})|torch.sum({x}.clone(), 0, out={x})|torch.cumsum({a}.clone(), {d}, out={a})|torch.sub({a}, {n}, out={a})|torch.mm({x}.clone(), {x}.clone(), out={x})
torch.exp({x}.clamp(max=2), out={x})|torch.amax({a:n}.clone(), 0, out={a:n})|torch.cat([{a}, {a}], out={a})|torch.maximum({a}, {a}, out={a})|torch.bitwise_xor({i}, {i}, out={i})|torch.gt({a}, {n}, out={b})
torch.index_select({a}, 0, torch.tensor([0], device=dev), out={a})|torch.add({x}[0], 1.5, out={x}[-1])|torch.mul({a}[..., ::2], {n}, out={a}[..., ::2])|torch.where({b}, {a}, {a}, out={a})
torch.sort({a:n}.clone(), {d}, out=({a:n}, torch.empty(0, dtype=torch.int64, device=dev)))|torch.stack([{a}, {a}], out={a})|torch.clamp({x}, -1, 1, out={x})|torch.tril({x}, out={x})
"""
# Numbers beside halves and integers, which eager rounds to the tensor's dtype in some operators and keeps in others.
NUMBERS = """
{a:n} == {s}|{a:n} != {s}|{a:n} < {s}|{a:n} >= {s}|{s} > {a:n}|{a:n} % {s}|{a:n} // {s}|torch.fmod({a:n}, {s})|torch.remainder({s}, {a:n}.abs() + 1)|{s} // ({x}.abs() + 1)|{a:n} + {s}|{a:n} - {s}
{s} - {a:n}|{a:n} * {s}|{x} / {s}|{s} / ({x}.abs() + 1)|F.hardshrink({x}, abs({s}))|F.softshrink({x}, abs({s}))|F.threshold({x}, {s}, {s})|F.leaky_relu({x}, {s})|F.elu({x}, abs({s}))|F.celu({x}, abs({s}))
{x}.clamp({s})|{a:n}.clamp(max={s})|{a:n}.clamp({s}, 2)|F.hardtanh({x}, -abs({s}), abs({s}))|torch.add({x}, {x}, alpha={s})|torch.sub({x}, {x}, alpha={s})|torch.addcmul({x}, {x}, {x}, value={s})|torch.addcdiv({x}, {x}, {x}.abs() + 1, value={s})
{x}.lerp({x}, {s})|{x}.abs() ** {s}|abs({s}) ** {x}|torch.where({b}, {x}, {s})|torch.where({x} > {s}, {x}, {s})|{x}.masked_fill({x} == {s}, {s})|{a:n}.eq({s})|{a:n}.ge({s})|torch.rsub({a:n}, {s})|torch.rsub({x}, {x}, alpha={s})
F.softplus({x}, abs({s}))|F.huber_loss({x}, {x}, delta=abs({s}))|F.smooth_l1_loss({x}, {x}, beta=abs({s}))|{x}.nan_to_num({s})|torch.full_like({a:n}, {s})|{x}.new_full((2,), {s})|torch.heaviside({x}, torch.tensor({s}, dtype={x}.dtype, device=dev))
torch.maximum({x}, torch.tensor({s}, device=dev))|{x} + torch.tensor({s}, device=dev)|{x} == torch.tensor({s}, device=dev)|{x}.sub({s})|{x}.float() + {s}|{x}.logit(0.1)|{x}.round(decimals=1)|{x}.isclose({x}, {s}, 0.1)|F.prelu({x}, torch.tensor({s}, dtype={x}.dtype, device=dev))
{x}.add_({s})|{x}.mul_({s})|{x}.clamp_({s})|{x}.fill_({s})|{a:n}.sub_({n})|{x}.remainder_(abs({s}))|{x}.floor_divide({s})|torch.div({x}, {s}, rounding_mode="trunc")|torch.div({a:n}, {s}, rounding_mode="floor")|{x}.copysign({s})|{x}.renorm(2, 0, abs({s}))
"""
SCATTERS = """
torch.slice_scatter({a}, {a}[..., :1], -1, 0, 1)|torch.select_scatter({a}, {a}.select({d}, 0), 0, -1)|torch.diagonal_scatter({a}, {a}.diagonal())|torch.slice_scatter({a}, {a}.narrow(0, 0, 1), 0, 1, 2)
torch.as_strided_scatter({a}, {a}.flatten()[:2], (2,), (1,))|torch.slice_scatter({a}, torch.full_like({a}[..., ::2], {n}), -1, 0, None, 2)|torch.select_scatter({a}.expand(3, *{a}.shape), {a}, 0, 1)
torch.slice_scatter({a}[..., :1].expand(*{a}.shape[:-1], 3), {a}[..., :1], -1, 1, 2)|{x}.as_strided_copy((2, 2), (2, 1))|torch.diagonal_scatter({a}[:1].expand(2, *{a}.shape[1:]), {a}[:1].expand(2, *{a}.shape[1:]).diagonal())
{a}.as_strided((2, 2), (1, 1))|{a}.as_strided((3,), (0,))|{a}.roll(-1, {d}).as_strided((2,), (3,), 1)|{a}.expand(2, *{a}.shape).contiguous()|{a}.unfold({d}, 2, 3)|{a}.unfold({d}, 3, 1).sum(-1)|{a}.narrow({d}, 0, 1).expand_as({a})
"""
IMAGES = """
F.max_pool2d({x4}, 2, ceil_mode=True)|F.avg_pool2d({x4}, 3, 1, 1)|F.pad({x4}, (1, 2, 0, 1))|F.pad({x4}, (1, 1, 1, 1), mode="reflect")|{x4}.roll(1, -1)|{x4}.roll((1, -1), (2, 3))|F.interpolate({x4}, scale_factor=2.0)
F.interpolate({x4}, size=(5, 7), mode="bilinear")|F.interpolate({x4}, scale_factor=0.5, mode="bicubic", antialias=True)|F.grid_sample({x4}, {x4}[:, :2].tanh().permute(0, 2, 3, 1))|{x4}.mean((2, 3), keepdim=True) * {x4}
{x4}.flatten(1)|{x4}.permute(0, 2, 3, 1)|{x4}.contiguous(memory_format=torch.channels_last)|{x4}.to(memory_format=torch.channels_last) + 1|torch.cat([{x4}, {x4}], 1)|{x4}.chunk(2, 1)[0]|{x4}[:, :, ::2]|{x4}.unfold(2, 2, 2).unfold(3, 2, 2)
F.conv2d({x4}, {x4}[:1, :, :2, :2])|F.conv2d({x4}, {x4}[:, :1, :3, :3].transpose(0, 1)[:1].expand({x4}.shape[1], -1, -1, -1)[:, :1], padding=1, groups={x4}.shape[1])|F.conv_transpose2d({x4}, {x4}[:1, :, :2, :2].transpose(0, 1))|F.unfold({x4}, 2)
F.adaptive_avg_pool2d({x4}, 1)|F.layer_norm({x4}.permute(0, 2, 3, 1), {x4}.shape[1:2])|F.instance_norm({x4})|{x4}.softmax(1)|F.pixel_shuffle({x4}, 2)|{x4}.amax((2, 3))|{x4}.sum(1, keepdim=True)|{x4}.var((0, 2, 3), unbiased=False)|torch.stack([{x4}, {x4}], 1).flatten(1, 2)
"""
TOKENS = """
F.scaled_dot_product_attention({x3}, {x3}, {x3})|F.scaled_dot_product_attention({x3}, {x3}, {x3}, is_causal=True)|F.scaled_dot_product_attention({x4}, {x4}, {x4})|F.scaled_dot_product_attention({x3}, {x3}, {x3}, attn_mask={b})
{x3} @ {x3}.mT|torch.bmm({x3}, {x3}.mT).softmax(-1) @ {x3}|{x3}.unflatten(-1, (-1, 2)).transpose(1, 2)|torch.cat([-{x}[..., 1::2], {x}[..., ::2]], -1)|F.layer_norm({x3}, {x3}.shape[-1:])|F.cross_entropy({x}, torch.zeros({x}.shape[0], dtype=torch.int64, device=dev))
{x3} + torch.arange({x3}.shape[1], device=dev)[:, None]|{x3}.masked_fill(torch.ones({x3}.shape[1], 1, device=dev, dtype=torch.bool).tril(), -1.0)|torch.einsum("bid,bjd->bij", {x3}, {x3})|{x3}.cumsum(1)|F.glu(torch.cat([{x}, {x}], -1), -1)
F.nll_loss({x}.log_softmax(-1), torch.zeros({x}.shape[0], dtype=torch.int64, device=dev), reduction="sum")|F.embedding({i}.long() % 5, {x3}[0])|{x3}.detach().topk(1, -1)[0]|{x3}.argmax(-1)|torch.nn.functional.one_hot({i}.long() % 5, 5).float() @ torch.ones(5, 3, device=dev)
"""
# Random draws, some of which nothing reads.
DRAWS = """
F.dropout({x}, 0.5)|torch.rand_like({x})|torch.randn(3, device=dev)|torch.randperm(7, device=dev)|torch.randint(0, 9, (4,), device=dev)|{x}.sigmoid().bernoulli()|torch.normal(0.0, 1.0, (2, 3), device=dev)|torch.empty_like({x}).uniform_(-1, 1)|torch.randn_like({x}) * {x}
torch.empty_like({x}).normal_()|F.rrelu({x}, training=True)|F.dropout1d({x3}, 0.5)|F.dropout2d({x4}, 0.3)|F.alpha_dropout({x}, 0.4)|torch.empty_like({x}).exponential_()|torch.multinomial({x}.flatten()[:8].float().abs() + 0.1, 3, replacement=True)|torch.rand({k}, {k}, device=dev)
F.gumbel_softmax({x}, dim=-1)|torch.bernoulli(torch.full_like({x}, 0.5))|{x}.bernoulli(0.3)|torch.empty_like({x}).geometric_(0.4)|torch.rand((), device=dev)|torch.randint_like({x}, 5)|torch.empty_like({x}).log_normal_()|torch.empty_like({x}).cauchy_().clamp(-9, 9)
"""
# What is exact on small numbers, so that bits can be looked at.
EXACT = """
-{a:n}|{a:n} + {a:n}|{a:n} - {a:n}|{a:n} * 2|{a:n} + {n}|{n} - {a:n}|torch.maximum({a}, {a})|torch.minimum({a}, {a})|torch.where({b}, {a}, {a})|{a} > {a}|{a} == {a}|~{b}|{x}.abs()|torch.relu({x})|{x}.clamp(-1, 1)|{x}.floor()|{a}.float()|{a}.double()|{a}.clone()|{a:n}.amax({d})
{x}.view(torch.int32)|{h}.view(torch.int16)|{h}.view(torch.bfloat16)|{h}.view(torch.float16)|{x}.view(torch.uint8)|{i}.view(torch.uint8)|{i}.view(torch.float32)|{x}.view(torch.int64)|{a}.view(torch.uint8)[..., ::2]|{i} & {i}|{i} ^ {i}|{i} >> 1|{x}.view(torch.int32) & 255|{a}.contiguous()|{a}.sum({d})|{x}.sign()
"""
KINDS = {
    name: [s for line in text.strip().splitlines() for s in line.split("|")]
    for name, text in dict(
        pointwise=POINTWISE, reduction=REDUCTIONS, view=VIEWS, index=INDEXING, product=PRODUCTS, write=WRITES, view_write=VIEW_WRITES,
        out=OUTS, number=NUMBERS, scatter=SCATTERS, image=IMAGES, token=TOKENS, draw=DRAWS, exact=EXACT,
    ).items()
}  # fmt: skip
# Kinds whose steps are statements.
STATEMENTS = ("write", "view_write", "out")
# What programs are of: how often each kind of step is drawn.
GENERAL = dict(pointwise=8, reduction=4, view=6, index=3, product=2, write=3, view_write=1, out=1, scatter=1, number=1, module=1)
THEMES: dict[str, dict[str, int]] = {
    "general": GENERAL,
    "image": dict(image=6, module=8, pointwise=3, reduction=1, write=1, view=1),
    "token": dict(token=6, module=5, pointwise=3, reduction=2, view=2, product=2, index=1, table=3),
    "number": dict(number=1),
    "bits": dict(exact=6, view=4, view_write=3, write=1, scatter=1),
    "write": dict(view_write=5, write=3, out=2, view=4, pointwise=2, scatter=2),
    "alias": dict(view=6, write=3, view_write=3, pointwise=3, scatter=1),
    "draw": dict(draw=5, pointwise=3, view=2, reduction=1, write=1, module=1),
}
THEME_WEIGHTS = dict(general=6, image=4, token=2, number=3, bits=2, write=3, alias=3, draw=1)
