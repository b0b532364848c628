// Ops that are run on the whole value, because no shard-wise way of them is written down here.
// Deterministic ops only: the same input gives the same output on every rank.
#include "core/rules/rule.h"

namespace cleave::rules {

void add_replicated(Table& table) {
  for (const auto* name :
       {"_local_scalar_dense", "equal", "argmax", "argmin", "sort", "topk", "kthvalue", "median", "nanmedian", "mode",
        "cumsum", "cumprod", "cummax", "cummin", "logcumsumexp", "prod", "std", "var", "std_mean", "var_mean", "all", "any",
        "max", "min", "aminmax", "nansum", "count_nonzero", "nonzero", "unique_dim", "_unique2", "gather", "scatter",
        "scatter_add", "scatter_reduce", "index", "index_put", "_index_put_impl", "index_select", "index_add", "index_copy",
        "index_fill", "masked_select", "masked_scatter", "take", "put", "flip", "roll", "repeat", "tril", "triu", "diag_embed",
        "diagonal_copy", "trace", "cross", "dist", "cdist", "_cdist_forward", "renorm", "bincount", "histc", "searchsorted",
        "bucketize", "convolution", "convolution_backward", "native_batch_norm", "native_batch_norm_backward",
        "_native_batch_norm_legit", "native_group_norm", "native_group_norm_backward", "max_pool2d_with_indices",
        "max_pool2d_with_indices_backward", "avg_pool2d", "avg_pool2d_backward", "_adaptive_avg_pool2d",
        "_adaptive_avg_pool2d_backward", "constant_pad_nd", "reflection_pad1d", "reflection_pad2d", "replication_pad1d",
        "replication_pad2d", "upsample_nearest2d", "upsample_nearest2d_backward", "upsample_bilinear2d",
        "upsample_bilinear2d_backward", "im2col", "col2im", "dot", "vdot", "mv", "addmv", "addr", "ger", "linalg_cross",
        "linalg_det", "_linalg_det", "linalg_inv_ex", "_linalg_solve_ex", "linalg_qr", "_linalg_svd", "_linalg_eigh",
        "linalg_cholesky_ex", "linalg_lu_factor_ex", "linalg_lu", "triangular_solve", "linalg_solve_triangular", "isin",
        "glu", "glu_backward", "value_selecting_reduction_backward", "_pack_padded_sequence", "is_same_size", "unfold_backward",
        "_embedding_bag", "_cdist_backward", "diagonal_backward", "trapezoid", "native_norm", "multi_margin_loss",
        "multilabel_margin_loss_forward", "_ctc_loss", "nll_loss2d_forward", "nll_loss2d_backward", "rot90", "_trilinear"}) {
    table[name] = {};
  }
}

}  // namespace cleave::rules
