/* config_json.c: writes dimensions as a config.json. It has the keys rope_scaling and rope_theta,
 * which transformers 4.57 and the 5 series both read. */
#include <string.h>

#include "trainer/model/dims.h"

static void put_list(json_writer *writer, const char *key, const int64_t *values, int count)
{
    json_begin_key_array(writer, key);
    for (int i = 0; i < count; i++)
        json_put_int(writer, values[i]);
    json_end_array(writer);
}

static void put_token(json_writer *writer, const char *key, int32_t id)
{
    json_put_key(writer, key);
    if (id < 0)
        json_put_null(writer);
    else
        json_put_int(writer, id);
}

static void put_ends(json_writer *writer, const model_dims *dims)
{
    int64_t end[MAX_ENDS];
    for (int i = 0; i < dims->n_config_ends; i++)
        end[i] = dims->end_token[i];
    if (dims->n_config_ends > 1)
        put_list(writer, "eos_token_id", end, dims->n_config_ends);
    else
        put_token(writer, "eos_token_id", dims->n_config_ends ? dims->end_token[0] : -1);
}

/* Writes the members of text_config, or in a text-only model of the top level. */
static void put_text_members(json_writer *writer, const model_dims *dims)
{
    const text_dims *text = &dims->text;
    json_put_key_int(writer, "vocab_size", text->vocab);
    json_put_key_int(writer, "hidden_size", text->hidden);
    json_put_key_int(writer, "intermediate_size", text->intermediate);
    json_put_key_int(writer, "num_hidden_layers", text->layers);
    json_put_key_int(writer, "num_attention_heads", text->heads);
    json_put_key_int(writer, "num_key_value_heads", text->kv_heads);
    json_put_key_int(writer, "head_dim", text->head_dim);
    json_put_key_cstr(writer, "hidden_act", "silu");
    json_put_key_bool(writer, "attention_bias", false);
    json_put_key_real(writer, "attention_dropout", 0.0);
    if (text->experts > 0) {
        json_put_key_int(writer, "num_experts", text->experts);
        json_put_key_int(writer, "num_experts_per_tok", text->top_k);
        json_put_key_int(writer, "moe_intermediate_size", text->expert_width);
        json_put_key_bool(writer, "norm_topk_prob", text->norm_topk_prob);
        json_put_key_int(writer, "decoder_sparse_step", text->sparse_step);
        put_list(writer, "mlp_only_layers", text->dense_layers, text->n_dense_layers);
        json_put_key_real(writer, "router_aux_loss_coef", text->router_aux_coef);
        json_put_key_bool(writer, "output_router_logits", text->output_router_logits);
    }
    json_put_key_real(writer, "rms_norm_eps", text->rms_eps);
    json_put_key_real(writer, "rope_theta", text->rope_theta);
    json_put_key(writer, "rope_scaling");
    if (dims->vision.depth > 0) {
        json_begin_object(writer);
        json_put_key_cstr(writer, "rope_type", "default");
        json_put_key_bool(writer, "mrope_interleaved", true);
        put_list(writer, "mrope_section", text->mrope_section, 3);
        json_end_object(writer);
    } else {
        json_put_null(writer);
    }
    if (text->max_positions > 0)
        json_put_key_int(writer, "max_position_embeddings", text->max_positions);
    json_put_key_real(writer, "initializer_range", text->initializer_range);
    put_token(writer, "bos_token_id", dims->bos_token);
    put_ends(writer, dims);
    if (text->has_pad)
        json_put_key_int(writer, "pad_token_id", text->pad_token);
    json_put_key_cstr(writer, "dtype", "bfloat16");
    json_put_key_bool(writer, "use_cache", true);
    json_put_key_bool(writer, "tie_word_embeddings", text->tied);
}

static void put_vision(json_writer *writer, const model_dims *dims)
{
    const vision_dims *tower = &dims->vision;
    json_begin_key_object(writer, "vision_config");
    json_put_key_cstr(writer, "model_type", dims->model_type);
    json_put_key_int(writer, "depth", tower->depth);
    json_put_key_int(writer, "hidden_size", tower->hidden);
    json_put_key_int(writer, "num_heads", tower->heads);
    json_put_key_int(writer, "intermediate_size", tower->intermediate);
    json_put_key_cstr(writer, "hidden_act", "gelu_pytorch_tanh");
    json_put_key_int(writer, "in_channels", 3);
    json_put_key_int(writer, "patch_size", 16);
    json_put_key_int(writer, "temporal_patch_size", 2);
    json_put_key_int(writer, "spatial_merge_size", tower->merge);
    json_put_key_int(writer, "num_position_embeddings", tower->positions);
    put_list(writer, "deepstack_visual_indexes", tower->deepstack, tower->n_deepstack);
    json_put_key_int(writer, "out_hidden_size", dims->text.hidden);
    json_put_key_real(writer, "initializer_range", tower->initializer_range);
    json_end_object(writer);
}

status dims_config_json(const model_dims *dims, char **out)
{
    json_writer writer;
    json_writer_init(&writer);
    json_begin_object(&writer);
    json_begin_key_array(&writer, "architectures");
    json_put_cstr(&writer, dims->architecture);
    json_end_array(&writer);
    json_put_key_cstr(&writer, "model_type", dims->model_type);
    if (dims->vision.depth > 0) {
        char text_type[80];
        snprintf(text_type, sizeof text_type, "%s_text", dims->model_type);
        json_put_key_int(&writer, "image_token_id", dims->image_token);
        json_put_key_int(&writer, "video_token_id", dims->video_token);
        json_put_key_int(&writer, "vision_start_token_id", dims->vision_start);
        json_put_key_int(&writer, "vision_end_token_id", dims->vision_end);
        json_put_key_bool(&writer, "tie_word_embeddings", dims->text.tied);
        json_begin_key_object(&writer, "text_config");
        json_put_key_cstr(&writer, "model_type", text_type);
        put_text_members(&writer, dims);
        json_end_object(&writer);
        put_vision(&writer, dims);
    } else {
        put_text_members(&writer, dims);
    }
    json_end_object(&writer);
    size_t size;
    return json_writer_take(&writer, out, &size);
}
