export module tessera.app.generation;

export import :sampling;       // which token follows, by logits
export import :streamed_text;  // text that is shown while it is made
export import :text_model;     // a trained model, ready to read and write text
export import :decoding;       // the logits after texts that grow
export import :generate;       // texts that a model continues
export import :chat;           // conversations, by a chat template
