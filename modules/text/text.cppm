// What a trained model does with text: reading, continuing, conversations, how likely it finds
// text.
export module tessera.text;

export import :sampling;        // which token follows, by logits
export import :streamed_text;   // text that is shown while it is made
export import :copies;          // the ranks of a model, and which computes what
export import :page_table;      // pages of memory, which texts with equal beginnings share
export import :text_memory;     // where keys, values and states of texts are, within a budget
export import :adapter_layers;  // several adapters of one model at the same time
export import :rank_process;    // ranks that are started again when one of them dies
export import :model_ranks;    // what is computed with a model, on all ranks that have a part of it
export import :text_model;     // a trained model, ready to read and write text
export import :decoding;       // the logits after texts that grow
export import :token_guesses;  // tokens that may follow, by what followed before
export import :text_engine;    // many texts that a model continues at the same time
export import :generate;       // texts that a model continues
export import :tool_calls;     // calls of tools in answers
export import :chat;           // conversations, by a chat template
export import :likelihood;     // how likely a model finds tokens
export import :perplexity;     // of texts and records
export import :questions;      // multiple choice, and answers that must match
export import :stored_values;  // outputs and gradients that another program has stored
