// Modules with qualified names, hooks and parameters; layers; the model families.
export module tessera.nn;

export import :attachments;           // Attachments: what others know of a parameter
export import :parameter;             // Parameter, Buffer
export import :tree;                  // Module, Child, hooks, EvaluationScope
export import :module_hooks;          // hooks that convert outputs, calls beyond forward
export import :module_form;           // what a module's call depends on, for recordings
export import :layer_split;           // LayerSplit: how layers can be split over ranks
export import :packed_weight;         // PackedWeight: weights in another form
export import :low_rank_update;       // LowRankUpdate: what is trained beside a weight
export import :pieces;                // a model as a chain of pieces, AbsentModule
export import :layers;                // Linear, Embedding, norms, Dropout, the loss
export import :ragged_batch;          // tokens of several texts that are computed together
export import :rotary;                // the rotation of queries and keys by their positions
export import :feed_forward;          // feed-forward parts
export import :recurrent;             // layers with a state of equal size: delta rule, Mamba 2
export import :attention_cache;       // keys and values so far, whole or split over ranks
export import :attention;             // Attention, LatentAttention, PositionEmbedding
export import :mixture;               // mixtures of experts: routing, loads, balance
export import :linear_cross_entropy;  // a product and its loss, in parts
export import :language_model;        // LanguageModel: loss, cache, recomputed blocks
export import :decoder_classifier;    // a decoder that tells the class of a row
export import :decoder;  // decoders as Llama, Qwen and Gemma, with Hugging Face's names
