"""All patches at a glance: what is replaced in torch and ExecuTorch, by what, and why.

A group is applied as a whole, by the function that its comment names. `SPEED` groups only save time and memory: the
.pte is the same without them. They need the tested versions. All others need only the patched name.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Patch:
    """`replacement(original, session)` makes the new attribute; a session is a dict that one application shares."""

    owner: str  # "module" or "module:Class"
    attribute: str
    replacement: str  # "module in ingot.patches:function"
    why: str  # what the original does
    needed: bool = False  # without it the result may be wrong, and verification would not see it


_SIGNATURE = "torch.export.graph_signature"
_PASS_BASE = "executorch.exir.pass_base:_ExportPassBase"
_ARM = "executorch.backends.arm._passes"
_XNNPACK = "executorch.backends.xnnpack._passes"
_VULKAN = "executorch.backends.vulkan"
_TORCH_PARTITIONER = "torch.fx.passes.infra.partitioner"
_GROUP_PARTITIONER = "executorch.exir.backend.canonical_partitioners.group_partitioner"
_RECOMPILE = Patch(
    "torch.fx:GraphModule", "recompile", "retrace:recompile_on_call", "few edited graphs are ever called"
)

# fmt: off
PATCHES: dict[str, tuple[Patch, ...]] = {
    # speed_contexts.fast_export
    "export": (
        Patch("torch.fx.traceback:NodeSource", "__init__",
              "retrace:source_without_history", "the history of a node grows with every pass and is copied whole"),
        Patch("torch._export.utils", "_materialize_cpp_cia_ops",
              "retrace:once", "looks up all composite ops again for each of some 40 namespaces"),
    ),
    # speed_contexts.lazy_codegen
    "codegen": (_RECOMPILE,),
    # speed_contexts.fast_convert
    "convert": (
        Patch("torchao.quantization.pt2e.quantize_pt2e", "_fold_conv_bn_qat",
              "pt2e:same_module", "exports patterns of its own training for any batch norm: seconds, and they stay"),
    ),
    # speed_contexts.fast_lowering
    "lowering": (
        _RECOMPILE,
        Patch("torch.export:ExportedProgram", "run_decompositions",
              "retrace:decompose_listed_ops", "traces the whole program to decompose a few ops"),
        Patch(_PASS_BASE, "_fx",
              "retrace:exir_memoized_fx", "every pass runs every op on fake tensors again"),
        Patch(_PASS_BASE, "call",
              "retrace:refresh_in_place", "a pass without hooks needs no new graph"),
        Patch(f"{_PASS_BASE}.ExportInterpreter", "run_node",
              "copy_node:run_node_without_repr", "formats every node as text in case of an error"),
        Patch(f"{_PASS_BASE}.ExportTracer", "set_metadata",
              "copy_node:fast_set_metadata", "computes tensor metadata that nothing reads"),
        Patch("torch._export.pass_base:_ExportPassBaseDeprecatedDoNotUse", "_fx",
              "retrace:torch_memoized_fx", "every pass runs every op on fake tensors again"),
        Patch("torch.fx.experimental.proxy_tensor", "_should_save_eager_input_vals",
              "retrace:never", "saves values for Inductor, which does not run"),
        Patch(_TORCH_PARTITIONER, "_DependencyViewer",
              "partitioner:lazy_dependency_viewer", "stores all dependents of each op: quadratic memory"),
        Patch(_GROUP_PARTITIONER, "_DependencyViewer",
              "partitioner:lazy_dependency_viewer", "stores all dependents of each op: quadratic memory"),
        Patch(f"{_GROUP_PARTITIONER}:GroupBasedPartitioner", "_can_merge_partitions",
              "partitioner:can_merge_partitions", "checks for cycles twice"),
        Patch("executorch.exir.backend.backend_details:BackendDetails", "copy_exported_program_for_preprocess",
              "partitioner:copy_sharing_weights", "copies the weights for each delegate"),
        Patch("executorch.exir._serialize._named_data_store:NamedDataStore", "_add_named_data_to_map",
              "partitioner:deduplicated_named_data", "each method keeps its own copy of shared weights"),
        Patch("executorch.exir.pass_manager:PassManager", "check",
              "partitioner:no_check", "validates the graph after each pass; Ingot executes the artefact"),
        Patch("executorch.exir.pass_manager:ExportedProgramPassManager", "check",
              "partitioner:no_check", "validates the graph after each pass; Ingot executes the artefact"),
        Patch("torch.fx:GraphModule", "print_readable",
              "partitioner:no_text", "formats graphs for a log that nobody reads"),
        Patch("executorch.exir._serialize._dataclass", "get_type_hints",
              "partitioner:cached_type_hints", "evaluates the annotations of one class for each object"),
        Patch(f"{_SIGNATURE}:ExportGraphSignature", "inputs_to_parameters",
              "partitioner:cached_signature_map", "rebuilds the map of all weights for each op"),
        Patch(f"{_SIGNATURE}:ExportGraphSignature", "inputs_to_buffers",
              "partitioner:cached_signature_map", "rebuilds the map of all buffers for each op"),
        Patch(f"{_SIGNATURE}:ExportGraphSignature", "inputs_to_lifted_tensor_constants",
              "partitioner:cached_signature_map", "rebuilds the map of all constants for each op"),
        Patch(f"{_SIGNATURE}:InputSpec", "__setattr__",
              "partitioner:counted_setattr", "invalidates the cached signature maps"),
        Patch(f"{_SIGNATURE}:TensorArgument", "__setattr__",
              "partitioner:counted_setattr", "invalidates the cached signature maps"),
    ),
    # dim_orders.plain_dim_orders
    "dim_orders": (
        Patch("executorch.exir.tensor:TensorSpec", "from_tensor",
              "dim_orders:contiguous_where_possible", "gives (2, 1, 3, 4) a dim order that no backend has"),
    ),
    # xnnpack.xnnpack_pass_fixes
    "xnnpack": (
        Patch(f"{_XNNPACK}.convert_to_sdpa:ConvertToSDPAPass", "call",
              "xnnpack:only_with_softmax", "exports attention patterns even if the graph has no softmax"),
        Patch(f"{_XNNPACK}.convert_to_upsample_bilinear2d:ConvertToUpsampleBilinear2d", "call",
              "xnnpack:only_with_index", "exports resize patterns even if the graph has no index"),
    ),
    # xnnpack.xnnpack_pass_fixes
    "xnnpack_layouts": (
        Patch(f"{_XNNPACK}.channels_last_tagged_reshape_pass:ChannelsLastTaggedReshapePass", "is_nhwc_node",
              "xnnpack:is_channels_last", "takes a quantized channels-last input for a contiguous one"),
        Patch(f"{_XNNPACK}.channels_last_tagged_reshape_pass:ChannelsLastTaggedReshapePass", "is_nchw_node",
              "xnnpack:is_contiguous", "takes a quantized channels-last input for a contiguous one"),
        Patch(f"{_XNNPACK}.channels_last_tagged_reshape_pass:ChannelsLastTaggedReshapePass", "requires_nchw_inputs",
              "xnnpack:or_works_on_last_axis", "works along the channels of a channels-last value"),
        Patch(f"{_XNNPACK}.conv1d_unsqueeze_pass:Conv1dUnsqueezePass", "insert_q_dq_pair",
              "xnnpack:only_around_integer_convolutions", "quantizes a reshape before a conv1d that computes in float"),
    ),
    # varying_sizes.varying_sizes
    "varying_sizes": (
        Patch("executorch.backends.xnnpack.xnnpack_preprocess", "serialize_xnnpack_binary",
              "varying_sizes:serialize_varying", "fixes the length of slices, and transposes keys at every run", True),
    ),
    # arm.arm_pass_fixes
    "arm": (
        Patch(f"{_ARM}.rewrite_conv_pass:RewriteConvPass", "_insert_a16w8_output_branches",
              "arm:no_output_branches", "rescales the accumulator of an int16 convolution twice: Vela refuses that"),
        Patch(f"{_ARM}.fold_scalar_mul_into_conv_pass:FoldScalarMulIntoConvPass", "call",
              "arm:unchanged", "multiplies the weights of the user's model in place, and fails on buffers", True),
        Patch(f"{_ARM}.fuse_consecutive_rescales_pass:FuseConsecutiveRescalesPass", "call",
              "arm:rounded_between_ops", "skips rounding and saturation of a value for some of its readers only"),
        Patch(f"{_ARM}.fuse_duplicate_users_pass:FuseDuplicateUsersPass", "_build_user_signature",
              "arm:signature_except_int48", "merges two equal int48 accumulators, so one has two rescales"),
        Patch(f"{_ARM}.arm_pass_manager:ArmPassManager", "_configure_pass_insertions",
              "arm:with_constant_permutes", "permutes constants at every run"),
        Patch("executorch.backends.transforms.propagate_view_copy_permute_pass:PropagateViewCopyPermuteUpPass",
              "_move_node",
              "arm:above_permuted_operand", "permutes the first operand, where only the second has an order"),
        Patch("executorch.backends.arm.arm_vela:vela", "main",
              "arm:vela_in_child", "its native compiler may end or stop this process, and its errors are not raised"),
    ),
    # program_caches.releases_programs: at the first verb and for good, since verbs of other threads overlap
    "shape_environments": (
        Patch("torch.fx.experimental.symbolic_shapes:ShapeEnv", "__init__",
              "program_caches:noting_environment", "keeps itself and a program's fake tensors: Ingot has to empty it"),
    ),
    # strict_exports.strict_exports_released, likewise
    "guards": (
        Patch("torch._dynamo.guards:CheckFunctionManager", "__init__",
              "strict_exports:noting_guards", "keeps the guards of every export: Ingot has to release them"),
    ),
    # vulkan.vulkan_lowering
    "vulkan": (
        Patch(f"{_VULKAN}.partitioner.vulkan_partitioner:VulkanSupportedOperators", "log_skip",
              "vulkan:log_refusal", "loses the node that a reason for host fallback is about"),
    ),
    # vulkan.vulkan_lowering
    "vulkan_views": (
        Patch("executorch.backends.transforms.view_copy_to_squeeze_unsqueeze:ViewCopyToSqueezeUnsqueezePass",
              "find_unsqueeze_dim", "vulkan:only_one_added_dim",
              "takes a view from (3, 3, 1) to (1, 3, 1, 3) for an unsqueeze, which makes (3, 3, 1, 1)", True),
    ),
    # vulkan.vulkan_lowering
    "vulkan_patterns": (
        Patch(f"{_VULKAN}.patterns", "fusable_patterns",
              "vulkan:patterns_where_needed", "exports rotary embeddings at each partition and for each delegate"),
        Patch(f"{_VULKAN}.patterns", "get_all_fusable_subgraphs",
              "vulkan:noting_graph", "exports the patterns whatever the graph is"),
        Patch(f"{_VULKAN}.patterns", "replace_all_fusable_subgraphs",
              "vulkan:noting_graph", "exports the patterns whatever the graph is"),
    ),
    # vulkan.vulkan_payloads
    "vulkan_payloads": (
        Patch(f"{_VULKAN}.serialization.vulkan_graph_serialize", "_flatc_decompile",
              "vulkan:with_json_numbers", "writes inf and nan, which are no JSON"),
    ),
}
# fmt: on

SPEED = frozenset({"export", "codegen", "convert", "lowering", "xnnpack", "vulkan_patterns"})
