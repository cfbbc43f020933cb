// Encoders of texts and images, as transformers stores them: BERT, ModernBERT and ViT.
export module tessera.encoders;

export import :encoder;          // EncoderShape, and the layers that it describes
export import :encoder_model;    // an encoder with a head: classes, hidden tokens, embeddings
export import :encoder_config;   // config.json of these models, read and written
export import :encoder_folder;   // their folders
export import :token_rows;       // texts as rows of tokens
export import :image_processor;  // images as inputs
