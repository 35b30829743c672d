"""PyTorch's operations that are no contractions: those that are counted by elements, or are free.

What is neither here nor in `flops` nor tagged by PyTorch itself (views, pointwise operations) is
unknown, and named to the user.
"""

from __future__ import annotations

# They move no data, or make tensors whose content does not cost anything worth counting.
_FREE = """
    empty empty_like empty_strided empty_permuted new_empty new_empty_strided detach_ lift
    lift_fresh lift_fresh_copy device is_pinned sym_size sym_stride sym_numel sym_storage_offset
    _local_scalar_dense set_ resize_ resize_as_ record_stream _assert_async _assert_scalar
    _record_function_enter_new _record_function_exit _record_function_enter is_nonzero
    _sparse_semi_structured_tile is_same_size _has_compatible_shallow_copy_type
    _reshape_alias _conj _neg_view item is_non_overlapping_and_dense is_contiguous
    unsafe_split unsafe_split_with_sizes unsafe_chunk
    is_strides_like_format get_default_nowrap_dim layout dim
"""
FREE = frozenset(_FREE.split())

# Each costs some operations an element: of its largest argument or result.
_ELEMENTWISE = """
    add sub mul div copy_ _to_copy clone fill fill_ zero zero_ ones ones_like zeros zeros_like full
    full_like arange linspace logspace eye scalar_tensor new_ones new_zeros new_full new_tensor
    tril triu tril_ triu_ tril_indices triu_indices cat stack _unsafe_view contiguous flip roll
    repeat constant_pad_nd pad reflection_pad1d reflection_pad2d reflection_pad3d
    replication_pad1d replication_pad2d replication_pad3d reflection_pad1d_backward
    reflection_pad2d_backward replication_pad2d_backward pixel_shuffle pixel_unshuffle
    channel_shuffle im2col col2im unfold_copy unfold_backward

    sum mean amax amin max min aminmax prod any all var std var_mean std_mean norm argmax argmin
    logsumexp cumsum cumprod cummax cummin logcumsumexp linalg_vector_norm nansum count_nonzero
    _foreach_norm _foreach_max sum_to_size median nanmedian mode kthvalue sort argsort topk msort
    searchsorted bucketize histc bincount unique_dim _unique2 unique_consecutive nonzero
    nonzero_static

    native_batch_norm native_batch_norm_backward _native_batch_norm_legit _fused_rms_norm
    _fused_rms_norm_backward _native_batch_norm_legit_no_training
    _native_batch_norm_legit_functional
    cudnn_batch_norm cudnn_batch_norm_backward batch_norm_with_update
    batch_norm_backward native_layer_norm native_layer_norm_backward native_group_norm
    native_group_norm_backward rms_norm renorm _weight_norm_interface
    _weight_norm_interface_backward batch_norm_stats batch_norm_elemt

    _softmax _log_softmax _softmax_backward_data _log_softmax_backward_data _safe_softmax
    _masked_softmax nll_loss_forward nll_loss_backward nll_loss2d_forward nll_loss2d_backward
    mse_loss mse_loss_backward smooth_l1_loss smooth_l1_loss_backward huber_loss
    huber_loss_backward l1_loss binary_cross_entropy binary_cross_entropy_backward
    binary_cross_entropy_with_logits soft_margin_loss soft_margin_loss_backward
    multi_margin_loss multilabel_margin_loss_forward kl_div _ctc_loss _ctc_loss_backward

    max_pool1d_with_indices max_pool2d_with_indices max_pool3d_with_indices
    max_pool2d_with_indices_backward max_pool3d_with_indices_backward avg_pool1d avg_pool2d
    avg_pool3d avg_pool2d_backward avg_pool3d_backward adaptive_avg_pool1d _adaptive_avg_pool2d
    _adaptive_avg_pool3d _adaptive_avg_pool2d_backward _adaptive_avg_pool3d_backward
    adaptive_max_pool2d adaptive_max_pool2d_backward adaptive_max_pool3d
    adaptive_max_pool3d_backward max_unpool2d mean_backward
    upsample_nearest1d upsample_nearest2d upsample_nearest3d upsample_nearest1d_backward
    upsample_nearest2d_backward upsample_nearest3d_backward upsample_bilinear2d
    upsample_bilinear2d_backward upsample_bicubic2d upsample_bicubic2d_backward
    upsample_linear1d upsample_linear1d_backward upsample_trilinear3d
    upsample_trilinear3d_backward _upsample_bilinear2d_aa _upsample_bilinear2d_aa_backward
    _upsample_nearest_exact2d _upsample_nearest_exact2d_backward grid_sampler_2d
    grid_sampler_2d_backward grid_sampler_3d grid_sampler_3d_backward affine_grid_generator

    embedding embedding_dense_backward _embedding_bag _embedding_bag_dense_backward
    _embedding_bag_backward
    _embedding_bag_forward_only embedding_renorm_ index index_put index_put_ _unsafe_index
    _unsafe_index_put _index_put_impl_ index_select index_add index_add_ index_copy index_copy_
    index_fill index_fill_ gather scatter scatter_ scatter_add scatter_add_ scatter_reduce
    scatter_reduce_ masked_fill masked_fill_ masked_select masked_scatter masked_scatter_
    masked_scatter_backward take take_along_dim put_ one_hot select_backward slice_backward
    diagonal_backward select_scatter slice_scatter diagonal_scatter as_strided_scatter where
    repeat_interleave isin equal value_selecting_reduction_backward

    bernoulli bernoulli_ uniform_ normal normal_ rand rand_like randn randn_like randint
    randint_like randperm exponential_ random_ geometric_ multinomial native_dropout
    native_dropout_backward log_normal_ cauchy_ _fused_dropout alpha_dropout

    _thnn_fused_lstm_cell _thnn_fused_gru_cell _thnn_fused_lstm_cell_backward_impl
    _thnn_fused_gru_cell_backward rrelu_with_noise rrelu_with_noise_backward glu glu_backward
    prelu _prelu_kernel _prelu_kernel_backward threshold_backward gelu_backward silu_backward
    hardswish_backward hardtanh_backward elu_backward leaky_relu_backward sigmoid_backward
    tanh_backward mish_backward softplus_backward hardsigmoid_backward log_sigmoid_forward
    log_sigmoid_backward logit_backward

    _amp_foreach_non_finite_check_and_unscale_ _amp_update_scale_ _fused_adamw_ _fused_adam_
    _fused_sgd_ _fused_adagrad_ outer addr
"""
ELEMENTWISE = frozenset(_ELEMENTWISE.split())
# Optimisers over lists of tensors: one pointwise operation each.
ELEMENTWISE_PREFIXES = ("_foreach_",)


def is_elementwise(name: str) -> bool:
    """Whether an operation of `aten` by this name, without overload, is counted by elements."""
    return name in ELEMENTWISE or name.startswith(ELEMENTWISE_PREFIXES)


def is_free(name: str) -> bool:
    """Whether an operation of `aten` by this name, without overload, costs nothing."""
    return name in FREE
