// The interfaces that parallel plugins implement, and the plan that applies them to a model.
export module tessera.parallel;

export import :options;        // a style's options, read with defaults and checked
export import :stages;         // a model whose pieces are divided over the ranks of an axis
export import :style;          // ParallelStyle: what a style plugin implements
export import :parallel_plan;  // patterns over qualified names -> styles; their order and
                               // conflicts; application
export import :precision;      // computing in a narrower type than parameters are stored in
export import :extension;      // in which form shards are gathered, and what is computed with
export import :fully_shard;    // the style FSDP by call, and its control by hand
export import :gradients;  // accumulation without communication; redistributing gradients to their
                           // parameters' layouts
