// The operators. Each has one source that holds all it is: shape rule, placement rule, kernel call,
// backward.
export module tessera.ops;

export import :pointwise;  // unary, binary with broadcasting, comparisons, where, cast, in-place
                           // forms
export import :reduce;     // sum, mean, extrema, norms, products, running sums
export import :sort;       // sort, topk, unique
export import :matmul;     // mm, bmm, matmul, linear, addmm, baddbmm, mv, dot, outer, einsum
export import :view;       // view, reshape, transpose, expand, slice, split... without copies where
                           // possible
export import :join;       // cat, stack, flip, roll, pad, repeat
export import :index;      // embedding, gather, scatter, index_put, index_select, tril, one_hot
export import :norm;       // rms_norm, layer_norm, group_norm, batch_norm, softmax, log_softmax
export import :convolution;  // conv1d, conv2d, pooling, interpolate
export import :attention;    // causal and masked grouped-query attention, rotary embedding, SwiGLU
export import :loss;         // cross_entropy, nll_loss, mse_loss and others of elements
export import :random;       // fills, dropout and draws: by global element index
export import :optimizer;    // one step of AdamW and SGD in one pass; forms over lists
export import :collective;   // local collectives as operators: all_gather, reduce_scatter,
                             // all_reduce...
export import :operands;     // what the slices share: broadcasting, dims, types
export import :rules;        // words in which placement rules are written
export import :compute;      // threads of a rank, and what a product can reach here
