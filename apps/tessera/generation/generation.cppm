export module tessera.app.generation;

export import :sampling;       // which token follows, by logits
export import :streamed_text;  // text that is shown while it is made
export import :copies;         // the ranks of a command, and which computes what
export import :model_ranks;    // what is computed with a model, on all ranks that have a part of it
export import :text_model;     // a trained model, ready to read and write text
export import :decoding;       // the logits after texts that grow
export import :generate;       // texts that a model continues
export import :chat;           // conversations, by a chat template
