/* config_json.c: writes dimensions as a config.json. It has the keys rope_scaling and rope_theta,
 * which transformers 4.57 and the 5 series both read. */
#include <string.h>

#include "trainer/model/dims.h"

static void put_list(json_writer *w, const char *key, const int64_t *v, int n)
{
    json_begin_key_array(w, key);
    for (int i = 0; i < n; i++)
        json_put_int(w, v[i]);
    json_end_array(w);
}

static void put_token(json_writer *w, const char *key, int32_t id)
{
    json_put_key(w, key);
    if (id < 0)
        json_put_null(w);
    else
        json_put_int(w, id);
}

/* Writes the members of text_config, or in a text-only model of the top level. */
static void put_text_members(json_writer *w, const model_dims *dims)
{
    const text_dims *text = &dims->text;
    json_put_key_int(w, "vocab_size", text->vocab);
    json_put_key_int(w, "hidden_size", text->hidden);
    json_put_key_int(w, "intermediate_size", text->intermediate);
    json_put_key_int(w, "num_hidden_layers", text->layers);
    json_put_key_int(w, "num_attention_heads", text->heads);
    json_put_key_int(w, "num_key_value_heads", text->kv_heads);
    json_put_key_int(w, "head_dim", text->head_dim);
    json_put_key_cstr(w, "hidden_act", "silu");
    json_put_key_bool(w, "attention_bias", false);
    json_put_key_real(w, "attention_dropout", 0.0);
    if (text->experts > 0) {
        json_put_key_int(w, "num_experts", text->experts);
        json_put_key_int(w, "num_experts_per_tok", text->top_k);
        json_put_key_int(w, "moe_intermediate_size", text->expert_width);
        json_put_key_bool(w, "norm_topk_prob", text->norm_topk_prob);
        json_put_key_int(w, "decoder_sparse_step", text->sparse_step);
        put_list(w, "mlp_only_layers", text->dense_layers, text->n_dense_layers);
        json_put_key_real(w, "router_aux_loss_coef", text->router_aux_coef);
        json_put_key_bool(w, "output_router_logits", text->output_router_logits);
    }
    json_put_key_real(w, "rms_norm_eps", text->rms_eps);
    json_put_key_real(w, "rope_theta", text->rope_theta);
    json_put_key(w, "rope_scaling");
    if (dims->vision.depth > 0) {
        json_begin_object(w);
        json_put_key_cstr(w, "rope_type", "default");
        json_put_key_bool(w, "mrope_interleaved", true);
        put_list(w, "mrope_section", text->mrope_section, 3);
        json_end_object(w);
    } else {
        json_put_null(w);
    }
    if (text->max_positions > 0)
        json_put_key_int(w, "max_position_embeddings", text->max_positions);
    json_put_key_real(w, "initializer_range", text->initializer_range);
    put_token(w, "bos_token_id", dims->bos_token);
    put_token(w, "eos_token_id", dims->eos_token);
    if (text->has_pad)
        json_put_key_int(w, "pad_token_id", text->pad_token);
    json_put_key_cstr(w, "dtype", "bfloat16");
    json_put_key_bool(w, "use_cache", true);
    json_put_key_bool(w, "tie_word_embeddings", text->tied);
}

static void put_vision(json_writer *w, const model_dims *dims)
{
    const vision_dims *tower = &dims->vision;
    json_begin_key_object(w, "vision_config");
    json_put_key_cstr(w, "model_type", dims->model_type);
    json_put_key_int(w, "depth", tower->depth);
    json_put_key_int(w, "hidden_size", tower->hidden);
    json_put_key_int(w, "num_heads", tower->heads);
    json_put_key_int(w, "intermediate_size", tower->intermediate);
    json_put_key_cstr(w, "hidden_act", "gelu_pytorch_tanh");
    json_put_key_int(w, "in_channels", 3);
    json_put_key_int(w, "patch_size", 16);
    json_put_key_int(w, "temporal_patch_size", 2);
    json_put_key_int(w, "spatial_merge_size", tower->merge);
    json_put_key_int(w, "num_position_embeddings", tower->positions);
    put_list(w, "deepstack_visual_indexes", tower->deepstack, tower->n_deepstack);
    json_put_key_int(w, "out_hidden_size", dims->text.hidden);
    json_put_key_real(w, "initializer_range", tower->initializer_range);
    json_end_object(w);
}

status dims_config_json(const model_dims *dims, char **out)
{
    json_writer w;
    json_writer_init(&w);
    json_begin_object(&w);
    json_begin_key_array(&w, "architectures");
    json_put_cstr(&w, dims->architecture);
    json_end_array(&w);
    json_put_key_cstr(&w, "model_type", dims->model_type);
    if (dims->vision.depth > 0) {
        char text_type[80];
        snprintf(text_type, sizeof text_type, "%s_text", dims->model_type);
        json_put_key_int(&w, "image_token_id", dims->image_token);
        json_put_key_int(&w, "video_token_id", dims->video_token);
        json_put_key_int(&w, "vision_start_token_id", dims->vision_start);
        json_put_key_int(&w, "vision_end_token_id", dims->vision_end);
        json_put_key_bool(&w, "tie_word_embeddings", dims->text.tied);
        json_begin_key_object(&w, "text_config");
        json_put_key_cstr(&w, "model_type", text_type);
        put_text_members(&w, dims);
        json_end_object(&w);
        put_vision(&w, dims);
    } else {
        put_text_members(&w, dims);
    }
    json_end_object(&w);
    size_t size;
    return json_writer_take(&w, out, &size);
}
