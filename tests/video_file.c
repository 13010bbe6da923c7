#include "tests/video_file.h"

#include <libavcodec/avcodec.h>
#include <libavformat/avformat.h>
#include <libavutil/opt.h>
#include <libavutil/parseutils.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STRIPE = 16 };

static void require_code(int code, const char *what)
{
    if (code >= 0)
        return;
    fprintf(stderr, "video_file: %s: %s\n", what, av_err2str(code));
    abort();
}

static void paint(AVFrame *f, int64_t k, int seed)
{
    require_code(av_frame_make_writable(f), "frame");
    for (int y = 0; y < f->height; y++)
        for (int x = 0; x < f->width; x++)
            f->data[0][y * f->linesize[0] + x] =
                (uint8_t)(40 + ((x + y / 2 + k * seed) / STRIPE % 8) * 24);
    for (int y = 0; y < f->height / 2; y++)
        for (int x = 0; x < f->width / 2; x++) {
            const bool quarter = y < f->height / 4 && x < f->width / 4;
            f->data[1][y * f->linesize[1] + x] = quarter ? (uint8_t)(16 + k * 37 % 220) : 128;
            f->data[2][y * f->linesize[2] + x] = quarter ? (uint8_t)(240 - k * 53 % 220) : 128;
        }
    f->pts = k;
}

static void write_packets(AVCodecContext *c, AVFormatContext *to, AVStream *s)
{
    AVPacket *p = av_packet_alloc();
    for (;;) {
        const int code = avcodec_receive_packet(c, p);
        if (code == AVERROR(EAGAIN) || code == AVERROR_EOF)
            break;
        require_code(code, "encoding");
        if (p->duration == 0)
            p->duration = 1;
        av_packet_rescale_ts(p, c->time_base, s->time_base);
        p->stream_index = s->index;
        require_code(av_interleaved_write_frame(to, p), "writing");
    }
    av_packet_free(&p);
}

static AVCodecContext *open_encoder(const AVCodec *codec, const video_plan *p, AVRational rate,
                                    bool global_header)
{
    AVCodecContext *c = avcodec_alloc_context3(codec);
    c->width = p->width;
    c->height = p->height;
    c->pix_fmt = codec->id == AV_CODEC_ID_MJPEG ? AV_PIX_FMT_YUVJ420P : AV_PIX_FMT_YUV420P;
    c->time_base = av_inv_q(rate);
    c->framerate = rate;
    c->gop_size = 12;
    c->max_b_frames = codec->id == AV_CODEC_ID_H264 ? 2 : 0;
    c->thread_count = 1;
    c->flags |= AV_CODEC_FLAG_BITEXACT | (global_header ? AV_CODEC_FLAG_GLOBAL_HEADER : 0);
    if (codec->id == AV_CODEC_ID_VP9 || codec->id == AV_CODEC_ID_VP8)
        av_opt_set(c->priv_data, "deadline", "realtime", 0);
    if (codec->id == AV_CODEC_ID_HEVC)
        av_opt_set(c->priv_data, "x265-params", "log-level=none", 0);
    require_code(avcodec_open2(c, codec, NULL), p->encoder);
    return c;
}

static void encode_all(AVCodecContext *c, AVFormatContext *to, AVStream *s, const video_plan *p)
{
    AVFrame *f = av_frame_alloc();
    f->width = c->width;
    f->height = c->height;
    f->format = c->pix_fmt;
    require_code(av_frame_get_buffer(f, 0), "frame");
    for (int64_t k = 0; k < p->frames; k++) {
        paint(f, k, p->seed);
        require_code(avcodec_send_frame(c, f), "encoding");
        write_packets(c, to, s);
    }
    require_code(avcodec_send_frame(c, NULL), "encoding");
    write_packets(c, to, s);
    av_frame_free(&f);
}

bool video_file_write(const char *path, const video_plan *p)
{
    AVFormatContext *to = NULL;
    AVRational rate;
    av_log_set_level(AV_LOG_ERROR);
    const AVCodec *codec = avcodec_find_encoder_by_name(p->encoder);
    if (!codec)
        return false;
    require_code(av_parse_video_rate(&rate, p->rate), p->rate);
    require_code(avformat_alloc_output_context2(&to, NULL, NULL, path), path);
    AVCodecContext *c = open_encoder(codec, p, rate, to->oformat->flags & AVFMT_GLOBALHEADER);
    AVStream *s = avformat_new_stream(to, NULL);
    require_code(avcodec_parameters_from_context(s->codecpar, c), "stream");
    s->time_base = c->time_base;
    s->avg_frame_rate = rate;
    to->flags |= AVFMT_FLAG_BITEXACT;
    require_code(avio_open(&to->pb, path, AVIO_FLAG_WRITE), path);
    require_code(avformat_write_header(to, NULL), "header");
    encode_all(c, to, s, p);
    require_code(av_write_trailer(to), "trailer");
    avio_closep(&to->pb);
    avcodec_free_context(&c);
    avformat_free_context(to);
    return true;
}
