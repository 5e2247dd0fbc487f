"""Models that people use, compiled and compared with eager: results, or the loss's gradients, against a float64 run.

usage: survey.py [--train] [--device cpu] [NAME ...]

Needs timm and transformers. Weights are random, sizes small where the architecture allows. For each model a line: the errors of
eager and of inrush (largest over all tensors, relative to the tensor's norm), graphs, kernels, operators that were called.
An error beyond three times eager's is marked: read on before calling it wrong, since one value that rounds to the other side
of a rectifier moves gradients by as much as 1e-3. Exit code 1 when a model failed.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from typing import Any, Callable

import torch
from torch.utils._pytree import tree_map_only

import inrush

SMALL = dict(num_hidden_layers=2, hidden_size=128, num_attention_heads=4, intermediate_size=256)
DECODER = dict(SMALL, num_key_value_heads=2, vocab_size=1000)

# Architectures of timm, as it names them.
IMAGES = (
    "efficientnet_b0 convnext_atto swin_tiny_patch4_window7_224 regnety_002 densenet121 inception_v3 ghostnet_050 "
    "volo_d1_224 xcit_nano_12_p16_224 mobilevit_xxs coatnet_pico_rw_224 hrnet_w18_small eca_nfnet_l0 poolformer_s12 "
    "res2net50_14w_8s maxvit_rmlp_pico_rw_256 cait_xxs24_224 resnest14d "
    "vit_tiny_patch16_224 deit_tiny_distilled_patch16_224 beit_base_patch16_224 eva02_tiny_patch14_224 mixer_s32_224 gmlp_s16_224 "
    "efficientnetv2_rw_t dm_nfnet_f0 rexnet_100 tinynet_e mobilenetv4_conv_small fastvit_t8 edgenext_xx_small levit_128s "
    "pit_ti_224 twins_pcpvt_small crossvit_tiny_240 convit_tiny repvgg_a0 lcnet_050 hardcorenas_a tf_efficientnet_lite0 "
    "swinv2_cr_tiny_ns_224 davit_tiny focalnet_tiny_srf efficientformer_l1 inception_next_atto starnet_s1 mambaout_femto"
).split()

# Architectures of torchvision: under which name, options, shape of the input.
VISION: dict[str, tuple[str, dict[str, Any], tuple[int, ...]]] = {
    "fcn": ("segmentation.fcn_resnet50", dict(num_classes=5), (1, 3, 96, 96)),
    "deeplab": ("segmentation.deeplabv3_mobilenet_v3_large", dict(num_classes=5), (2, 3, 96, 96)),
    "lraspp": ("segmentation.lraspp_mobilenet_v3_large", dict(num_classes=5), (2, 3, 96, 96)),
    "r3d": ("video.r3d_18", dict(num_classes=5), (1, 3, 8, 48, 48)),
    "r2plus1d": ("video.r2plus1d_18", dict(num_classes=5), (1, 3, 8, 48, 48)),
    "swin3d": ("video.swin3d_t", dict(num_classes=5), (1, 3, 8, 64, 64)),
    "mvit": ("video.mvit_v2_s", dict(num_classes=5), (1, 3, 16, 224, 224)),
    "shufflenet": ("shufflenet_v2_x0_5", dict(num_classes=5), (2, 3, 96, 96)),
    "squeezenet": ("squeezenet1_1", dict(num_classes=5), (2, 3, 96, 96)),
    "googlenet": ("googlenet", dict(num_classes=5, aux_logits=False, init_weights=False), (2, 3, 96, 96)),
    "mnasnet": ("mnasnet0_5", dict(num_classes=5), (2, 3, 96, 96)),
    "vgg11_bn": ("vgg11_bn", dict(num_classes=5), (1, 3, 64, 64)),
    "alexnet": ("alexnet", dict(num_classes=5), (2, 3, 96, 96)),
    "fasterrcnn": ("detection.fasterrcnn_mobilenet_v3_large_320_fpn", dict(num_classes=5), (3, 120, 160)),
    "maskrcnn": ("detection.maskrcnn_resnet50_fpn", dict(num_classes=5, min_size=128, max_size=160), (3, 120, 160)),
    "retinanet": ("detection.retinanet_resnet50_fpn", dict(num_classes=5, min_size=128, max_size=160), (3, 120, 160)),
}

# Architectures of transformers: class, configuration, inputs.
TEXT: dict[str, tuple[str, str, dict[str, Any], Callable[[Any], tuple]]] = {}


def text(name: str, cls: str, config: str, given: dict[str, Any], inputs: Callable[[Any], tuple] | None = None) -> None:
    TEXT[name] = (cls, config, given, inputs or (lambda c: (torch.randint(0, c.vocab_size, (2, 33)),)))


text("bert", "BertForSequenceClassification", "BertConfig", SMALL)
text("albert", "AlbertForMaskedLM", "AlbertConfig", dict(SMALL, embedding_size=64))
text("deberta", "DebertaV2Model", "DebertaV2Config", dict(SMALL, relative_attention=True, pos_att_type=["p2c", "c2p"]))
text("t5", "T5EncoderModel", "T5Config", dict(num_layers=2, d_model=64, d_kv=16, num_heads=4, d_ff=128))
text("bloom", "BloomForCausalLM", "BloomConfig", dict(n_layer=2, hidden_size=128, n_head=4, vocab_size=1000))
text("opt", "OPTForCausalLM", "OPTConfig", dict(SMALL, ffn_dim=256, word_embed_proj_dim=128))
text("mistral", "MistralForCausalLM", "MistralConfig", dict(DECODER, sliding_window=16))
text("gemma", "Gemma2ForCausalLM", "Gemma2Config", dict(DECODER, head_dim=32))
text("qwen", "Qwen2ForCausalLM", "Qwen2Config", DECODER)
text("mamba", "MambaForCausalLM", "MambaConfig", dict(num_hidden_layers=2, hidden_size=64, vocab_size=1000))
text(
    "whisper",
    "WhisperModel",
    "WhisperConfig",
    dict(encoder_layers=2, decoder_layers=2, d_model=64, encoder_attention_heads=4, decoder_attention_heads=4)
    | dict(encoder_ffn_dim=128, decoder_ffn_dim=128, vocab_size=1000, pad_token_id=0, bos_token_id=1)
    | dict(eos_token_id=2, decoder_start_token_id=1),
    lambda c: (torch.randn(1, 80, 3000), None, torch.randint(0, 1000, (1, 7))),
)
text("wav2vec", "Wav2Vec2Model", "Wav2Vec2Config", dict(SMALL, hidden_size=64), lambda c: (torch.randn(1, 16000),))
text(
    "segformer",
    "SegformerForSemanticSegmentation",
    "SegformerConfig",
    dict(depths=[1, 1, 1, 1]),
    lambda c: (torch.randn(1, 3, 128, 128),),
)

def pair(c: Any) -> tuple:
    """Tokens for an encoder and a decoder."""
    return torch.randint(0, c.vocab_size, (2, 33)), None, torch.randint(0, c.vocab_size, (2, 9))


BOTH = dict(encoder_layers=2, decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4) | dict(
    encoder_ffn_dim=128, decoder_ffn_dim=128, d_model=64
)
PIXELS = lambda c: (torch.randn(1, 3, 224, 224),)  # noqa: E731
SOUND = lambda c: (torch.randn(1, 16000),)  # noqa: E731
text("roberta", "RobertaForMaskedLM", "RobertaConfig", dict(SMALL, vocab_size=1000))
text("electra", "ElectraForMaskedLM", "ElectraConfig", dict(SMALL, embedding_size=64))
text("t5_both", "T5ForConditionalGeneration", "T5Config", dict(num_layers=2, d_model=64, d_kv=16, num_heads=4, d_ff=128), pair)
text("bart", "BartForConditionalGeneration", "BartConfig", dict(BOTH, vocab_size=1000), pair)
text("pegasus", "PegasusForConditionalGeneration", "PegasusConfig", dict(BOTH, vocab_size=1000), pair)
text("phi", "PhiForCausalLM", "PhiConfig", DECODER)
text("phi3", "Phi3ForCausalLM", "Phi3Config", dict(DECODER, pad_token_id=0))
text("qwen3", "Qwen3ForCausalLM", "Qwen3Config", dict(DECODER, head_dim=32))
text("qwen2_moe", "Qwen2MoeForCausalLM", "Qwen2MoeConfig", dict(DECODER, num_experts=4, moe_intermediate_size=64))
text("mixtral", "MixtralForCausalLM", "MixtralConfig", dict(DECODER, num_local_experts=4))
text("gemma1", "GemmaForCausalLM", "GemmaConfig", dict(DECODER, head_dim=32))
text("gemma3", "Gemma3ForCausalLM", "Gemma3TextConfig", dict(DECODER, head_dim=32))
text("falcon", "FalconForCausalLM", "FalconConfig", dict(SMALL, vocab_size=1000))
text("gpt_neox", "GPTNeoXForCausalLM", "GPTNeoXConfig", dict(SMALL, vocab_size=1000))
text("gptj", "GPTJForCausalLM", "GPTJConfig", dict(n_layer=2, n_embd=128, n_head=4, rotary_dim=16, vocab_size=1000))
text("codegen", "CodeGenForCausalLM", "CodeGenConfig", dict(n_layer=2, n_embd=128, n_head=4, rotary_dim=16, vocab_size=1000))
text("mpt", "MptForCausalLM", "MptConfig", dict(n_layers=2, d_model=128, n_heads=4, vocab_size=1000))
text("mamba2", "Mamba2ForCausalLM", "Mamba2Config", dict(SMALL, num_heads=8, head_dim=32, vocab_size=1000, n_groups=1))
text("rwkv", "RwkvForCausalLM", "RwkvConfig", dict(num_hidden_layers=2, hidden_size=64, vocab_size=1000))
text("xlnet", "XLNetLMHeadModel", "XLNetConfig", dict(n_layer=2, d_model=128, n_head=4, d_inner=256, vocab_size=1000))
text("longformer", "LongformerModel", "LongformerConfig", dict(SMALL, attention_window=[16, 16], vocab_size=1000))
text("funnel", "FunnelModel", "FunnelConfig", dict(block_sizes=[1, 1], d_model=128, n_head=4, d_head=32, d_inner=256, vocab_size=1000))
text("fnet", "FNetModel", "FNetConfig", dict(SMALL, vocab_size=1000))
text("convbert", "ConvBertModel", "ConvBertConfig", dict(SMALL, vocab_size=1000))
text("dinov2", "Dinov2Model", "Dinov2Config", dict(num_hidden_layers=2, hidden_size=64, num_attention_heads=4), PIXELS)
text("siglip", "SiglipVisionModel", "SiglipVisionConfig", dict(num_hidden_layers=2), PIXELS)
text("hubert", "HubertModel", "HubertConfig", dict(SMALL, hidden_size=64), SOUND)
text("wavlm", "WavLMModel", "WavLMConfig", dict(SMALL, hidden_size=64), SOUND)
text("ast", "ASTModel", "ASTConfig", SMALL, lambda c: (torch.randn(1, 1024, 128),))
text("time_series", "PatchTSTForPrediction", "PatchTSTConfig", dict(context_length=64, d_model=32, ffn_dim=64, num_hidden_layers=2), lambda c: (torch.randn(2, 64, 1),))
text("clip", "CLIPVisionModel", "CLIPVisionConfig", dict(num_hidden_layers=2), lambda c: (torch.randn(1, 3, 224, 224),))


class First(torch.nn.Module):
    """A model of transformers that gives a tensor."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *inputs: Any) -> torch.Tensor:
        out = self.model(*inputs)
        return out.logits if hasattr(out, "logits") else out[0]


def build(name: str) -> tuple[torch.nn.Module, tuple]:
    if name in TEXT:
        import transformers

        cls, config, given, inputs = TEXT[name]
        configuration = getattr(transformers, config)(**given)
        return First(getattr(transformers, cls)(configuration).eval()), inputs(configuration)
    if name in VISION:
        import torchvision

        place, given, shape = VISION[name]
        builder = torchvision.models
        for part in place.split("."):
            builder = getattr(builder, part)
        weights = {"weights_backbone": None} if "." in place and not place.startswith("video") else {}
        model = builder(weights=None, **weights, **given).eval()
        images = torch.randn(shape)
        return model, ([images],) if place.startswith("detection") else (images,)
    import timm

    model = timm.create_model(name, pretrained=False, num_classes=100).eval()
    return model, (torch.randn(2, *model.default_cfg["input_size"]),)


def first(out: Any) -> torch.Tensor:
    return out if isinstance(out, torch.Tensor) else first(next(iter(out.values())) if isinstance(out, dict) else out[0])


def step(f: Any, model: torch.nn.Module, inputs: tuple, train: bool) -> list[torch.Tensor]:
    if not train:
        with torch.no_grad():
            return [first(f(*inputs))]
    model.zero_grad()
    out = first(f(*inputs))
    out.double().square().mean().backward()
    return [out.detach()] + [p.grad.clone() for p in model.parameters() if p.grad is not None]


def survey(name: str, train: bool, device: str) -> str:
    torch._dynamo.reset()
    torch.manual_seed(0)
    model, inputs = build(name)
    model, inputs = model.to(device), tree_map_only(torch.Tensor, lambda x: x.to(device), inputs)
    eager = step(model, model, inputs, train)
    before = len(inrush.compilations())
    start = time.perf_counter()
    got = step(torch.compile(model, backend="inrush", options={"strict": True}), model, inputs, train)
    took = time.perf_counter() - start
    reports = inrush.compilations()[before:]
    model = model.double()
    for part in model.modules():
        if hasattr(part, "set_experts_implementation"):
            # The grouped product has no float64.
            part.set_experts_implementation("eager")
    want = step(model, model, tree_map_only(torch.Tensor, lambda x: x.double() if x.is_floating_point() else x, inputs), train)
    scale = max(float(w.norm()) for w in want)

    def error(values: list[torch.Tensor]) -> float:
        return max(float((v.double() - w).norm() / max(float(w.norm()), 1e-3 * scale, 1e-30)) for v, w in zip(values, want))

    called: dict[str, int] = {}
    for graph in (g for r in reports for g in r.graphs):
        for call in graph.calls:
            called[call.op] = called.get(call.op, 0) + call.count
    ours, theirs = error(got), error(eager)
    mark = "ok  " if ours <= 3 * theirs + 1e-6 else "FAR "
    counts = f"{len(reports)} graphs, {sum(r.kernels for r in reports)} kernels"
    errors = f"inrush {ours:.1e}, eager {theirs:.1e}"
    return f"{mark} {name}: {errors}, first call {took:.1f} s, {counts}, called {called or 'nothing'}"


def main() -> int:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("names", nargs="*")
    p.add_argument("--train", action="store_true")
    p.add_argument("--device", default="cpu")
    args = p.parse_args()
    warnings.filterwarnings("ignore")
    failed = 0
    for name in args.names or [*IMAGES, *VISION, *TEXT]:
        try:
            print(survey(name, args.train, args.device), flush=True)
        except Exception as error:
            failed += 1
            text = str(error).splitlines()
            print(f"FAIL {name}: {type(error).__name__}: {text[0] if text else ''}", flush=True)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
