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
static void put_text_members(json_writer *w, const model_dims *d)
{
    const text_dims *t = &d->text;
    json_put_key_int(w, "vocab_size", t->vocab);
    json_put_key_int(w, "hidden_size", t->hidden);
    json_put_key_int(w, "intermediate_size", t->intermediate);
    json_put_key_int(w, "num_hidden_layers", t->layers);
    json_put_key_int(w, "num_attention_heads", t->heads);
    json_put_key_int(w, "num_key_value_heads", t->kv_heads);
    json_put_key_int(w, "head_dim", t->head_dim);
    json_put_key_cstr(w, "hidden_act", "silu");
    json_put_key_bool(w, "attention_bias", false);
    json_put_key_real(w, "attention_dropout", 0.0);
    if (t->experts > 0) {
        json_put_key_int(w, "num_experts", t->experts);
        json_put_key_int(w, "num_experts_per_tok", t->top_k);
        json_put_key_int(w, "moe_intermediate_size", t->expert_width);
        json_put_key_bool(w, "norm_topk_prob", t->norm_topk_prob);
        json_put_key_int(w, "decoder_sparse_step", t->sparse_step);
        put_list(w, "mlp_only_layers", t->dense_layers, t->n_dense_layers);
        json_put_key_real(w, "router_aux_loss_coef", t->router_aux_coef);
        json_put_key_bool(w, "output_router_logits", t->output_router_logits);
    }
    json_put_key_real(w, "rms_norm_eps", t->rms_eps);
    json_put_key_real(w, "rope_theta", t->rope_theta);
    json_put_key(w, "rope_scaling");
    if (d->vision.depth > 0) {
        json_begin_object(w);
        json_put_key_cstr(w, "rope_type", "default");
        json_put_key_bool(w, "mrope_interleaved", true);
        put_list(w, "mrope_section", t->mrope_section, 3);
        json_end_object(w);
    } else {
        json_put_null(w);
    }
    if (t->max_positions > 0)
        json_put_key_int(w, "max_position_embeddings", t->max_positions);
    json_put_key_real(w, "initializer_range", t->initializer_range);
    put_token(w, "bos_token_id", d->bos_token);
    put_token(w, "eos_token_id", d->eos_token);
    if (t->has_pad)
        json_put_key_int(w, "pad_token_id", t->pad_token);
    json_put_key_cstr(w, "dtype", "bfloat16");
    json_put_key_bool(w, "use_cache", true);
    json_put_key_bool(w, "tie_word_embeddings", t->tied);
}

static void put_vision(json_writer *w, const model_dims *d)
{
    const vision_dims *v = &d->vision;
    json_begin_key_object(w, "vision_config");
    json_put_key_cstr(w, "model_type", d->model_type);
    json_put_key_int(w, "depth", v->depth);
    json_put_key_int(w, "hidden_size", v->hidden);
    json_put_key_int(w, "num_heads", v->heads);
    json_put_key_int(w, "intermediate_size", v->intermediate);
    json_put_key_cstr(w, "hidden_act", "gelu_pytorch_tanh");
    json_put_key_int(w, "in_channels", 3);
    json_put_key_int(w, "patch_size", 16);
    json_put_key_int(w, "temporal_patch_size", 2);
    json_put_key_int(w, "spatial_merge_size", v->merge);
    json_put_key_int(w, "num_position_embeddings", v->positions);
    put_list(w, "deepstack_visual_indexes", v->deepstack, v->n_deepstack);
    json_put_key_int(w, "out_hidden_size", d->text.hidden);
    json_put_key_real(w, "initializer_range", v->initializer_range);
    json_end_object(w);
}

status dims_config_json(const model_dims *d, char **out)
{
    json_writer w;
    json_writer_init(&w);
    json_begin_object(&w);
    json_begin_key_array(&w, "architectures");
    json_put_cstr(&w, d->architecture);
    json_end_array(&w);
    json_put_key_cstr(&w, "model_type", d->model_type);
    if (d->vision.depth > 0) {
        char text_type[80];
        snprintf(text_type, sizeof text_type, "%s_text", d->model_type);
        json_put_key_int(&w, "image_token_id", d->image_token);
        json_put_key_int(&w, "video_token_id", d->video_token);
        json_put_key_int(&w, "vision_start_token_id", d->vision_start);
        json_put_key_int(&w, "vision_end_token_id", d->vision_end);
        json_put_key_bool(&w, "tie_word_embeddings", d->text.tied);
        json_begin_key_object(&w, "text_config");
        json_put_key_cstr(&w, "model_type", text_type);
        put_text_members(&w, d);
        json_end_object(&w);
        put_vision(&w, d);
    } else {
        put_text_members(&w, d);
    }
    json_end_object(&w);
    size_t size;
    return json_writer_take(&w, out, &size);
}
