"""Models that people use: architectures of timm, torchvision and transformers in small configurations, with random weights."""

from __future__ import annotations

from typing import Any, Callable

import torch

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
    "swinv2_cr_tiny_ns_224 davit_tiny focalnet_tiny_srf efficientformer_l1 inception_next_atto starnet_s1 mambaout_femto "
    "botnet26t_256 lambda_resnet26t halonet26t sehalonet33ts bat_resnext26ts convmixer_768_32 cs3darknet_focus_s dla34 dpn48b efficientvit_b0 "
    "efficientvit_m0 efficientvim_m1 gcvit_xxtiny hgnetv2_b0 hiera_tiny_224 mobilenetv5_base mvitv2_tiny nest_tiny_jx nextvit_small "
    "pvt_v2_b0 repghostnet_050 repvit_m0_9 resnetv2_50x1_bit selecsls42 legacy_seresnet18 sequencer2d_s skresnet18 swiftformer_xs "
    "tiny_vit_5m_224 tnt_s_patch16_224 visformer_tiny vit_relpos_small_patch16_224 vitamin_small_224 ese_vovnet19b_dw xception41p "
    "swinv2_tiny_window8_256 rdnet_tiny fasternet_t0 shvit_s1 lowformer_b0 iformer_t csatv2 naflexvit_base_patch16_gap samvit_base_patch16_224 "
    "resnet50d seresnext26t_32x4d gernet_s resnet10t"
).split()

# Of these the ones that are made for images of one size, which nothing in their builder says.
ONE_SIZE = "efficientformer_l1 halonet26t sehalonet33ts bat_resnext26ts".split()

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
    "raft": ("optical_flow.raft_small", dict(), (1, 3, 128, 128)),
    "s3d": ("video.s3d", dict(num_classes=5), (1, 3, 16, 224, 224)),
    "mc3": ("video.mc3_18", dict(num_classes=5), (1, 3, 8, 48, 48)),
    "maxvit": ("maxvit_t", dict(num_classes=5), (1, 3, 224, 224)),
    "swin_v2": ("swin_v2_t", dict(num_classes=5), (1, 3, 64, 64)),
    "regnet": ("regnet_y_400mf", dict(num_classes=5), (2, 3, 64, 64)),
    "ssd": ("detection.ssdlite320_mobilenet_v3_large", dict(num_classes=5), (3, 120, 160)),
    "fcos": ("detection.fcos_resnet50_fpn", dict(num_classes=5, min_size=128, max_size=160), (3, 120, 160)),
    "keypointrcnn": ("detection.keypointrcnn_resnet50_fpn", dict(num_classes=2, min_size=128, max_size=160), (3, 120, 160)),
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
text("gpt_oss", "GptOssForCausalLM", "GptOssConfig", dict(DECODER, head_dim=32, num_local_experts=4, num_experts_per_tok=2, sliding_window=16))
text("llama4", "Llama4ForCausalLM", "Llama4TextConfig", dict(DECODER, head_dim=32, num_local_experts=4, intermediate_size_mlp=256))
text(
    "deepseek_v3",
    "DeepseekV3ForCausalLM",
    "DeepseekV3Config",
    dict(DECODER, num_key_value_heads=4, n_routed_experts=8, n_group=2, topk_group=1, num_experts_per_tok=2, first_k_dense_replace=1)
    | dict(kv_lora_rank=32, q_lora_rank=32, qk_rope_head_dim=16, qk_nope_head_dim=16, v_head_dim=32, moe_intermediate_size=64),
)
text("qwen3_moe", "Qwen3MoeForCausalLM", "Qwen3MoeConfig", dict(DECODER, head_dim=32, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=64))
text(
    "qwen3_next",
    "Qwen3NextForCausalLM",
    "Qwen3NextConfig",
    dict(DECODER, head_dim=32, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=64, shared_expert_intermediate_size=64)
    | dict(linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=16, linear_value_head_dim=16)
    | dict(layer_types=["linear_attention", "full_attention"]),
)
text("olmo2", "Olmo2ForCausalLM", "Olmo2Config", DECODER)
text("granitemoe", "GraniteMoeForCausalLM", "GraniteMoeConfig", dict(DECODER, num_local_experts=4, num_experts_per_tok=2))
text("cohere2", "Cohere2ForCausalLM", "Cohere2Config", dict(DECODER, sliding_window=16))
text("glm4", "Glm4ForCausalLM", "Glm4Config", dict(DECODER, head_dim=32, pad_token_id=0))
text("stablelm", "StableLmForCausalLM", "StableLmConfig", DECODER)
text("starcoder2", "Starcoder2ForCausalLM", "Starcoder2Config", dict(DECODER, sliding_window=16))
text("nemotron", "NemotronForCausalLM", "NemotronConfig", dict(DECODER, head_dim=32))
text("lfm2", "Lfm2ForCausalLM", "Lfm2Config", dict(DECODER, layer_types=["conv", "full_attention"]))
text("recurrent_gemma", "RecurrentGemmaForCausalLM", "RecurrentGemmaConfig", dict(DECODER, num_hidden_layers=3, lru_width=128, attention_window_size=16))
text("falcon_mamba", "FalconMambaForCausalLM", "FalconMambaConfig", dict(num_hidden_layers=2, hidden_size=64, vocab_size=1000))
text(
    "jamba",
    "JambaForCausalLM",
    "JambaConfig",
    dict(DECODER, num_experts=4, attn_layer_period=2, attn_layer_offset=1, expert_layer_period=2, expert_layer_offset=1, mamba_d_state=8)
    | dict(use_mamba_kernels=False, mamba_dt_rank=8),
)
text("big_bird", "BigBirdModel", "BigBirdConfig", dict(SMALL, vocab_size=1000, block_size=8, num_random_blocks=2), lambda c: (torch.randint(0, 1000, (1, 128)),))
text("nystromformer", "NystromformerModel", "NystromformerConfig", dict(SMALL, vocab_size=1000, num_landmarks=32, segment_means_seq_len=32), lambda c: (torch.randint(0, 1000, (2, 32)),))
text("longt5", "LongT5ForConditionalGeneration", "LongT5Config", dict(num_layers=2, d_model=64, d_kv=16, num_heads=4, d_ff=128, local_radius=8), pair)
text("switch", "SwitchTransformersForConditionalGeneration", "SwitchTransformersConfig", dict(num_layers=2, num_decoder_layers=2, d_model=64, d_kv=16, num_heads=4, d_ff=128, num_experts=4), pair)
text("m2m_100", "M2M100ForConditionalGeneration", "M2M100Config", dict(BOTH, vocab_size=1000), pair)
text("led", "LEDForConditionalGeneration", "LEDConfig", dict(BOTH, vocab_size=1000, attention_window=16), pair)
text("prophetnet", "ProphetNetForConditionalGeneration", "ProphetNetConfig", dict(hidden_size=64, num_encoder_layers=2, num_decoder_layers=2, num_encoder_attention_heads=4, num_decoder_attention_heads=4, encoder_ffn_dim=128, decoder_ffn_dim=128, vocab_size=1000), pair)
text("modernbert", "ModernBertForMaskedLM", "ModernBertConfig", dict(SMALL, vocab_size=1000, local_attention=16, pad_token_id=0, global_attn_every_n_layers=2))
text("distilbert", "DistilBertForMaskedLM", "DistilBertConfig", dict(n_layers=2, dim=64, n_heads=4, hidden_dim=128, vocab_size=1000))
text("mobilebert", "MobileBertForMaskedLM", "MobileBertConfig", dict(num_hidden_layers=2, vocab_size=1000))
text("squeezebert", "SqueezeBertForMaskedLM", "SqueezeBertConfig", dict(SMALL, embedding_size=128, vocab_size=1000))
text("deberta_v1", "DebertaModel", "DebertaConfig", dict(SMALL, relative_attention=True, pos_att_type=["p2c", "c2p"], vocab_size=1000))
text("esm", "EsmModel", "EsmConfig", dict(SMALL, vocab_size=33, position_embedding_type="rotary", token_dropout=True, mask_token_id=32, pad_token_id=1))
text("mpnet", "MPNetModel", "MPNetConfig", dict(SMALL, vocab_size=1000))
text("canine", "CanineModel", "CanineConfig", SMALL, lambda c: (torch.randint(0, 1000, (1, 64)),))
text("ibert", "IBertModel", "IBertConfig", dict(SMALL, vocab_size=1000, quant_mode=True))
text("roformer", "RoFormerModel", "RoFormerConfig", dict(SMALL, vocab_size=1000))
text("reformer", "ReformerModel", "ReformerConfig", dict(hidden_size=64, num_attention_heads=2, attention_head_size=32, feed_forward_size=64, attn_layers=["local", "lsh"], axial_pos_embds_dim=[32, 32], axial_pos_shape=[8, 8], local_attn_chunk_length=8, lsh_attn_chunk_length=8, num_buckets=4, num_hashes=1, hash_seed=1, vocab_size=1000), lambda c: (torch.randint(0, 1000, (1, 64)),))
text("xlstm", "xLSTMForCausalLM", "xLSTMConfig", dict(num_hidden_layers=2, hidden_size=128, num_heads=4, vocab_size=1000))
text("minimax", "MiniMaxForCausalLM", "MiniMaxConfig", dict(DECODER, num_local_experts=4, block_size=16, layer_types=["linear_attention", "full_attention"]))
text("sam", "SamVisionModel", "SamVisionConfig", dict(num_hidden_layers=2, hidden_size=64, num_attention_heads=4, image_size=128, patch_size=16, mlp_dim=128, global_attn_indexes=[1], window_size=5, output_channels=32), lambda c: (torch.randn(1, 3, 128, 128),))
text("yolos", "YolosForObjectDetection", "YolosConfig", dict(SMALL, image_size=[64, 64], num_detection_tokens=10), lambda c: (torch.randn(1, 3, 64, 64),))
text("rt_detr", "RTDetrForObjectDetection", "RTDetrConfig", dict(encoder_layers=1, decoder_layers=2, num_queries=20), lambda c: (torch.randn(1, 3, 128, 128),))
text("detr", "DetrForObjectDetection", "DetrConfig", dict(BOTH, num_queries=20), lambda c: (torch.randn(1, 3, 64, 64),))
text("deformable_detr", "DeformableDetrForObjectDetection", "DeformableDetrConfig", dict(BOTH, num_queries=20), lambda c: (torch.randn(1, 3, 64, 64),))
text("clipseg", "CLIPSegForImageSegmentation", "CLIPSegConfig", dict(), lambda c: (torch.randint(0, 1000, (1, 9)), torch.randn(1, 3, 224, 224)))
text("owlvit", "OwlViTModel", "OwlViTConfig", dict(), lambda c: (torch.randint(0, 1000, (1, 9)), torch.randn(1, 3, 768, 768)))
text("groupvit", "GroupViTModel", "GroupViTConfig", dict(), lambda c: (torch.randint(0, 1000, (1, 9)), torch.randn(1, 3, 224, 224)))
text("timesfm", "TimesFmModelForPrediction", "TimesFmConfig", dict(SMALL, head_dim=32), lambda c: ([torch.randn(64), torch.randn(50)],))
text("vits", "VitsModel", "VitsConfig", dict(SMALL, hidden_size=64, ffn_dim=128, vocab_size=40, flow_size=64, upsample_initial_channel=64, spectrogram_bins=33), lambda c: (torch.randint(0, 40, (1, 9)),))
text("vit_mae", "ViTMAEModel", "ViTMAEConfig", dict(SMALL, mask_ratio=0.0), lambda c: (torch.randn(1, 3, 224, 224), torch.rand(1, 196)))
text("dpt", "DPTForDepthEstimation", "DPTConfig", dict(SMALL, num_hidden_layers=4, image_size=64, backbone_out_indices=[0, 1, 2, 3], neck_hidden_sizes=[16, 16, 32, 32], fusion_hidden_size=32), lambda c: (torch.randn(1, 3, 64, 64),))
text("glpn", "GLPNForDepthEstimation", "GLPNConfig", dict(depths=[1, 1, 1, 1]), lambda c: (torch.randn(1, 3, 64, 64),))
text("swin2sr", "Swin2SRForImageSuperResolution", "Swin2SRConfig", dict(embed_dim=32, depths=[2, 2], num_heads=[2, 2], image_size=32, window_size=8), lambda c: (torch.randn(1, 3, 32, 32),))
text("videomae", "VideoMAEModel", "VideoMAEConfig", dict(SMALL, image_size=32, num_frames=4), lambda c: (torch.randn(1, 4, 3, 32, 32),))
text("timesformer", "TimesformerModel", "TimesformerConfig", dict(SMALL, image_size=32, num_frames=4), lambda c: (torch.randn(1, 4, 3, 32, 32),))
text("speech_to_text", "Speech2TextModel", "Speech2TextConfig", dict(BOTH, vocab_size=1000), lambda c: (torch.randn(1, 100, 80), None, torch.randint(0, 1000, (1, 9))))
text("wav2vec2_bert", "Wav2Vec2BertModel", "Wav2Vec2BertConfig", SMALL, lambda c: (torch.randn(1, 50, 160),))
text("conformer", "Wav2Vec2ConformerModel", "Wav2Vec2ConformerConfig", dict(SMALL, hidden_size=64), SOUND)
text("sew", "SEWModel", "SEWConfig", dict(SMALL, hidden_size=64), SOUND)
text("encodec", "EncodecModel", "EncodecConfig", dict(num_filters=8, hidden_size=32, codebook_dim=32, num_lstm_layers=1), lambda c: (torch.randn(1, 1, 4800),))
text("dac", "DacModel", "DacConfig", dict(encoder_hidden_size=8, decoder_hidden_size=64, n_codebooks=2), lambda c: (torch.randn(1, 1, 4096),))
text("moonshine", "MoonshineModel", "MoonshineConfig", dict(hidden_size=64, intermediate_size=128, encoder_num_hidden_layers=2, decoder_num_hidden_layers=2, encoder_num_attention_heads=4, decoder_num_attention_heads=4, vocab_size=1000), lambda c: (torch.randn(1, 16000), None, torch.randint(0, 1000, (1, 7))))
text("patchtsmixer", "PatchTSMixerForPrediction", "PatchTSMixerConfig", dict(context_length=64, num_input_channels=2, d_model=16), lambda c: (torch.randn(2, 64, 2),))
text("decision", "DecisionTransformerModel", "DecisionTransformerConfig", dict(n_layer=2, hidden_size=64, n_head=4), lambda c: (torch.randn(1, 8, 17), torch.randn(1, 8, 4), torch.randn(1, 8, 1), torch.randn(1, 8, 1), torch.arange(8)[None], torch.ones(1, 8)))
text("superpoint", "SuperPointForKeypointDetection", "SuperPointConfig", dict(), lambda c: (torch.rand(1, 3, 64, 64),))
text("clip", "CLIPVisionModel", "CLIPVisionConfig", dict(num_hidden_layers=2), lambda c: (torch.randn(1, 3, 224, 224),))


class First(torch.nn.Module):
    """A model of transformers that gives a tensor."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *inputs: Any) -> torch.Tensor:
        out = self.model(*inputs)
        return out.logits if hasattr(out, "logits") else out[0]


def build(name: str, size: int | None = None) -> tuple[torch.nn.Module, tuple]:
    """A model and its inputs. What architectures begin with as zeros, and would hide what is multiplied with it, is drawn too."""
    model, inputs = architecture(name, size)
    for weight in model.parameters():
        if not weight.any():
            torch.nn.init.normal_(weight, std=0.02)
    return model, inputs


def objects(height: int, width: int) -> dict[str, torch.Tensor]:
    """Two objects in a picture, as detectors are taught: boxes, classes, masks, keypoints."""
    boxes = torch.tensor([[0.1, 0.1, 0.5, 0.6], [0.3, 0.2, 0.9, 0.8]]) * torch.tensor([width, height, width, height])
    masks = torch.zeros(2, height, width, dtype=torch.uint8)
    masks[0, 20:60, 20:70], masks[1, 30:90, 50:130] = 1, 1
    points = torch.cat([boxes[:, None, :2] + torch.rand(2, 17, 2) * (boxes[:, None, 2:] - boxes[:, None, :2]), torch.ones(2, 17, 1)], -1)
    return {"boxes": boxes, "labels": torch.tensor([1, 1]), "masks": masks, "keypoints": points}


def architecture(name: str, size: int | None) -> tuple[torch.nn.Module, tuple]:
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
        weights = {"weights_backbone": None} if place.startswith(("segmentation", "detection")) else {}
        model = builder(weights=None, **weights, **given).eval()
        images = torch.randn(shape)
        if place.startswith("optical_flow"):
            return model, (images, images.roll(3, -1))
        return model, ([images], [objects(*shape[1:])]) if place.startswith("detection") else (images,)
    import timm

    size = None if name in ONE_SIZE else size
    model = timm.create_model(name, pretrained=False, num_classes=100, **({"img_size": size} if size and takes_size(name) else {}))
    shape = model.default_cfg["input_size"]
    return model.eval(), (torch.randn(2, shape[0], *(2 * [size] if size else shape[1:])),)


def takes_size(name: str) -> bool:
    """Whether an architecture of timm is built for a size of images."""
    import timm

    try:
        timm.create_model(name, img_size=timm.get_pretrained_cfg(name).input_size[-1])
        return True
    except TypeError:
        return False


NAMES = (*IMAGES, *VISION, *TEXT)
