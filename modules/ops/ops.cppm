// The operators. One source file contains everything about an operator: shape rule, placement rule,
// kernel call, backward.
export module tessera.ops;

export import :pointwise;  // unary, binary with broadcasting, comparisons, where, cast, in-place
                           // and out variants
export import :reduce;     // sum, mean, extrema, norms, products, running sums
export import :sort;       // sort, topk, unique
export import :matmul;     // mm, bmm, matmul, linear, mv, dot, outer, einsum, products of groups
export import :view;       // view, reshape, transpose, expand, slice, split... without copies where
                           // possible
export import :join;       // cat, stack, flip, roll, pad, repeat
export import :index;      // embedding, gather, scatter, index_put, index_select, tril, one_hot
export import :norm;       // rms_norm, layer_norm, group_norm, batch_norm, softmax, log_softmax
export import :convolution;   // conv1d, conv2d, pooling, interpolate
export import :attention;     // causal and masked grouped-query attention, rotary embedding, SwiGLU
export import :loss;          // cross_entropy, nll_loss, mse_loss and other losses
export import :random;        // fills, dropout and sampling, by global element index
export import :updates;       // the steps of optimizers, each in one pass over all parameters
export import :optimizer;     // operators over lists of tensors
export import :collective;    // collectives of local tensors as operators: all_gather,
                              // reduce_scatter, all_reduce...
export import :operands;      // what operators share: broadcasting, dims, types
export import :rules;         // building blocks of placement rules
export import :compute;       // threads per rank, and the speed of a matrix product on this machine
export import :element_code;  // what code generated from Op::element needs
